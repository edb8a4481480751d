"""The downlink of `Compressed`: clients keep a model, and get coded differences to the next one."""

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian

from klms.container import read_arrays, write_arrays
from klms.errors import CorruptMessage, InvalidArgument, KLMSError
from klms.exchange.broadcast import Broadcast
from klms.exchange.client import Client
from klms.exchange.request import RequestBody
from klms.flower import Compressed, compress
from klms.frame import OVERHEAD, Frame, Kind
from tests.flower.in_process import InProcessGrid

SHAPES = {"w": (150, 120), "bias": (120,), "scale": (120,), "head": (120, 10), "steps": (1,)}
D = 150 * 120 + 120 + 120 + 1200 + 1
_RNG = np.random.default_rng(1)
TARGET = {name: _RNG.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items() if name != "steps"}
TARGET["scale"] = np.abs(TARGET["scale"])


def start_arrays(steps=(1,)) -> ArrayRecord:
    rng = np.random.default_rng(7)
    arrays = {name: 0.1 * rng.standard_normal(shape) for name, shape in SHAPES.items() if name != "steps"}
    arrays["scale"] = np.ones(SHAPES["scale"])
    record = {name: Array(array.astype(np.float32)) for name, array in arrays.items()}
    return ArrayRecord({**record, "steps": Array(np.zeros(steps, dtype=np.int64))})


def client(*mods, seen=None) -> ClientApp:
    """Takes a small step towards the target; `seen` collects the models that clients trained and evaluated."""
    app = ClientApp(mods=list(mods))
    seen = {} if seen is None else seen

    def note(kind, message, context):
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        number = message.content["config"]["server-round"]
        seen.setdefault((kind, number), {})[context.node_config["partition-id"]] = arrays
        return arrays

    @app.train()
    def train(message, context):
        arrays = note("train", message, context)
        new = {
            name: Array((a + 0.2 * (TARGET[name] - a)).astype(a.dtype)) for name, a in arrays.items() if name in TARGET
        }
        new["steps"] = Array(np.asarray(arrays["steps"] + 1))
        metrics = MetricRecord({"num-examples": 10, "loss": 0.5})
        records = {"arrays": ArrayRecord({name: new[name] for name in arrays}), "metrics": metrics}
        return Message(RecordDict(records), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        note("evaluate", message, context)
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "loss": 0.1})}), reply_to=message)

    return app


def distance(arrays) -> float:
    off = sum(float(((arrays[name].numpy() - target) ** 2).sum()) for name, target in TARGET.items())
    return (off / sum(float((target**2).sum()) for target in TARGET.values())) ** 0.5


def run(strategy, grid, rounds=12):
    return strategy.start(grid, start_arrays(), num_rounds=rounds, timeout=5)


def same(one, other) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one) and one.keys() == other.keys()


def test_all_clients_train_and_evaluate_one_model_that_follows_the_server_s():
    seen = {}
    strategy = Compressed(FedAvg(), bits_per_parameter=1, seed=1)
    result = run(strategy, InProcessGrid(client(compress(), seen=seen), 3))
    assert len(seen) == 24
    for models in seen.values():
        assert len(models) == 3
        assert all(same(models[0], model) for model in models.values())
    assert all(same(seen["evaluate", n][0], seen["train", n + 1][0]) for n in range(1, 12))
    assert distance(result.arrays) < 0.15
    held = seen["evaluate", 12][0]
    assert np.linalg.norm(held["w"] - result.arrays["w"].numpy()) < 0.1 * np.linalg.norm(held["w"])


def test_bytes_keep_to_the_bits_that_were_said_and_evaluation_resends_nothing():
    strategy = Compressed(FedAvg(), up=2, down=0.5, seed=1)
    grid = InProcessGrid(client(compress()), 3)
    result = run(strategy, grid, rounds=6)
    train = [record["klms-downlink-bytes"] for record in result.train_metrics_clientapp.values()]
    evaluate = [record["klms-downlink-bytes"] for record in result.evaluate_metrics_clientapp.values()]
    assert 3 * (2.8 * D / 8) < train[0] < 3 * (3.1 * D / 8)
    assert all(3 * 0.3 * D / 8 < count < 3 * 0.56 * D / 8 for count in evaluate)
    assert all(count < 3 * 64 for count in train[1:])  # evaluation has brought the model
    assert strategy.downlink_bytes == sum(train) + sum(evaluate)
    assert strategy.downlink_bytes == sum(len(message.content["klms"]["request"]) for message in grid.sent)
    phases = (*result.train_metrics_clientapp.values(), *result.evaluate_metrics_clientapp.values())
    assert strategy.uplink_bytes == sum(metrics["klms-uplink-bytes"] for metrics in phases)
    assert strategy.uplink_bytes < 6 * 3 * (2 * D / 8 + OVERHEAD)  # an answer to an evaluation is a frame


@pytest.mark.parametrize(
    "inner",
    [
        FedAvg(),
        FedMedian(),
        FedAdam(eta=0.3, tau=0.1),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_strategies_end_where_they_end_without_klms(inner):
    stock = run(type(inner)(**_options(inner)), InProcessGrid(client(), 4), rounds=10)
    both = run(Compressed(inner, bits_per_parameter=2, seed=3), InProcessGrid(client(compress(seed=2)), 4), rounds=10)
    assert distance(both.arrays) < distance(stock.arrays) + 0.1


def _options(strategy):
    return {"eta": 0.3, "tau": 0.1} if isinstance(strategy, FedAdam) else {}


def test_integers_arrive_exactly_and_small_arrays_almost():
    seen = {}
    strategy, grid = Compressed(FedAvg(), bits_per_parameter=6, seed=1), InProcessGrid(client(compress(), seen=seen), 2)
    strategy.start(grid, start_arrays(steps=()), num_rounds=3, timeout=5)
    assert [int(seen["train", n][0]["steps"]) for n in (1, 2, 3)] == [0, 1, 2]
    np.testing.assert_allclose(seen["train", 1][0]["bias"], start_arrays()["bias"].numpy(), atol=0.01)


def test_at_low_rates_payloads_keep_to_their_bits():
    seen = {}
    strategy = Compressed(FedAvg(), up=0.5, down=0.2, seed=1)
    result = run(strategy, InProcessGrid(client(compress(), seen=seen), 3), rounds=10)
    assert distance(result.arrays) < distance(start_arrays())
    sent = [record["klms-uplink-bytes"] for record in result.train_metrics_clientapp.values()]
    assert all(count <= 3 * 0.5 * D / 8 * 1.02 for count in sent)


def change_state(grid, node, change) -> None:
    """Change what a node keeps, so that it still reads well."""
    record = grid.contexts[node].state["klms.state"]
    found, meta = read_arrays(Frame.from_bytes(record["state"].data, Kind.CLIENT).body)
    arrays = {name: array.copy() for name, array in found.items()}
    change(arrays, meta)
    data = Frame(Kind.CLIENT, 0, 0, bytes(8), write_arrays(arrays, meta)).to_bytes()
    record["state"] = Array("uint8", (len(data),), "klms", data)


def resyncs_of(result) -> dict[int, int]:
    metrics = result.train_metrics_clientapp.items()
    return {number: record["klms-resyncs"] for number, record in metrics if "klms-resyncs" in record}


def test_nodes_that_were_away_new_wiped_or_tampered_with_train_the_server_s_model_at_once():
    seen = {}
    strategy = Compressed(FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1), seed=1, down=0.5)
    grid = InProcessGrid(client(compress(), seen=seen), 5)
    grid.offline = {5}
    send, resyncs = grid.send_and_receive, {}

    def happens(messages, *, timeout=None):
        messages = list(messages)
        numbers = {m.content["config"]["server-round"] for m in messages if "config" in m.content}
        number = next(iter(numbers), None)
        if number == 3:
            grid.offline = {5}
            messages = [m for m in messages if m.metadata.dst_node_id != 4]  # node 4 is away for three rounds
        if number in (4, 5):
            messages = [m for m in messages if m.metadata.dst_node_id != 4]
        if number == 6 and "tampered" not in resyncs:
            resyncs["tampered"] = True
            change_state(grid, 1, lambda arrays, meta: arrays["model.w"].__iadd__(1))
            grid.contexts[2].state.clear()  # node 2 has lost everything
            grid.contexts[3].state["klms.state"]["state"] = Array("uint8", (7,), "klms", b"nothing")
            change_state(grid, 4, lambda arrays, meta: arrays.update({"model.w": np.zeros((3, 7), np.float32)}))
        if number == 9:
            grid.offline = set()  # node 5 joins in round 10
        return send(messages, timeout=timeout)

    grid.send_and_receive = happens
    result = run(strategy, grid, rounds=12)
    for (_, number), models in seen.items():
        one = next(iter(models.values()))
        assert all(same(one, model) for model in models.values()), number
    expected = {n: {0, 1, 2} if n in (3, 4, 5) else {0, 1, 2, 3} for n in range(1, 10)}
    expected |= {n: {0, 1, 2, 3, 4} for n in (10, 11, 12)}
    assert {n: set(seen["train", n]) for n in range(1, 13)} == expected
    assert resyncs_of(result) == {6: 4}
    assert result.train_metrics_clientapp[6]["klms-ok"] == 4


def test_a_server_that_is_started_again_leads_the_same_nodes_to_its_model():
    seen = {}
    grid = InProcessGrid(client(compress(), seen=seen), 3)
    first = run(Compressed(FedAvg(), bits_per_parameter=1), grid, rounds=4)
    seen.clear()
    again = Compressed(FedAvg(), bits_per_parameter=1)
    result = again.start(grid, first.arrays, num_rounds=3, timeout=5)
    assert resyncs_of(result) == {}
    assert [record["klms-ok"] for record in result.train_metrics_clientapp.values()] == [3, 3, 3]
    near = seen["train", 1][0]["w"] - first.arrays["w"].numpy()
    assert np.linalg.norm(near) < 0.2 * np.linalg.norm(first.arrays["w"].numpy())


def test_nodes_without_the_mod_get_arrays_and_are_asked_only_once():
    seen = {}
    grid = InProcessGrid(client(compress(), seen=seen), 3)
    stock = client(seen=seen)
    modded = grid.app

    def app(message, context):
        return (stock if context.node_id == 2 else modded)(message, context)

    grid.app = app
    strategy = Compressed(FedAvg(), bits_per_parameter=1, seed=1)
    result = run(strategy, grid, rounds=5)
    for models in seen.values():
        assert same(models[0], models[2])
        assert np.linalg.norm(models[0]["w"] - models[1]["w"]) < 0.2 * np.linalg.norm(models[1]["w"])
    assert all(record["klms-ok"] == 3 for record in result.train_metrics_clientapp.values())
    assert all(record["klms-uncompressed"] == 1 for record in result.train_metrics_clientapp.values())
    alone = [m.metadata.dst_node_id for m in grid.sent if not m.content.array_records]
    assert alone.count(2) == 1
    assert len(grid.sent) == 31  # three nodes in ten phases, and one of them once more
    assert strategy.downlink_bytes > 10 * 4 * D  # ten models of float32 for node 2


def test_a_model_that_is_too_small_or_a_downlink_of_32_bits_is_not_coded():
    grid = InProcessGrid(client(compress()), 2)
    strategy = Compressed(FedAvg(), up=1, down=32)
    run(strategy, grid, rounds=2)
    assert all("arrays" in m.content.array_records for m in grid.sent)
    assert strategy.downlink_bytes > 2 * 4 * 4 * D  # two rounds of training and evaluation, two nodes


def test_the_same_seed_gives_the_same_bytes():
    def sent():
        grid = InProcessGrid(client(compress(seed=3)), 3)
        run(Compressed(FedAvg(), bits_per_parameter=0.5, seed=5), grid, rounds=3)
        return {m.content["klms"]["request"] for m in grid.sent}

    assert len(sent() & sent()) >= 1  # FedAvg adds clients up in any order, so that only the first is sure to agree


def test_rates_may_follow_the_round():
    strategy = Compressed(
        FedAvg(), up=lambda number: 2 if number < 3 else 0.5, down=lambda number: 3 - number / 2, seed=1
    )
    result = run(strategy, InProcessGrid(client(compress()), 3), rounds=4)
    up = [record["klms-bits-per-parameter"] for record in result.train_metrics_clientapp.values()]
    assert [round(2 * bits) / 2 for bits in up] == [2, 2, 0.5, 0.5]
    down = [8 * record["klms-downlink-bytes"] / 3 / D for record in result.evaluate_metrics_clientapp.values()]
    assert down == sorted(down, reverse=True)
    assert down[0] > down[-1] + 0.9


@pytest.mark.parametrize("settings", [{"bits_per_parameter": 1, "up": 1}, {"first": 0}, {"down": -1}, {"first": 99}])
def test_wrong_settings_are_explained(settings):
    with pytest.raises(InvalidArgument):
        Compressed(FedAvg(), **settings)


def requests(grid, node=1) -> list[bytes]:
    return [m.content["klms"]["request"] for m in grid.sent if m.metadata.dst_node_id == node]


def forged(request: bytes, broadcast: bytes) -> bytes:
    """The same request with another broadcast, in a frame that is sound."""
    frame = Frame.from_bytes(request, Kind.REQUEST)
    body = replace(RequestBody.from_bytes(frame.body), broadcast=broadcast)
    return replace(frame, body=body.to_bytes()).to_bytes()


def test_hostile_requests_raise_errors_of_ours_alone():
    grid = InProcessGrid(client(compress()), 1)
    run(Compressed(FedAvg(min_train_nodes=1, min_available_nodes=1, min_evaluate_nodes=1), seed=1), grid, rounds=2)
    rng = np.random.default_rng(0)
    first, second = requests(grid)[:2]
    holder = Client()
    holder.receive(first)
    for data, held in ((first, b""), (second, holder.state)):
        for _ in range(100):
            changed = bytearray(data)
            for _ in range(int(rng.integers(1, 4))):
                changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
            cut = bytes(changed[: int(rng.integers(len(changed) + 1))]) if rng.random() < 0.3 else bytes(changed)
            with pytest.raises(KLMSError):
                Client(held).receive(cut)
        broadcast = Broadcast.from_bytes(RequestBody.from_bytes(Frame.from_bytes(data, Kind.REQUEST).body).broadcast)
        for inner in range(100):  # damage that the checksum does not see
            (step,) = broadcast.steps
            at = inner if inner < 60 else int(rng.integers(len(step)))
            damaged = bytearray(step)
            damaged[at] ^= 1 << int(rng.integers(8))
            other = replace(broadcast, steps=(bytes(damaged),)).to_bytes()
            with pytest.raises(KLMSError):
                Client(held).receive(forged(data, other))


def test_a_node_that_cannot_follow_says_so_and_does_not_train():
    seen = {}
    grid = InProcessGrid(client(compress(), seen=seen), 1)
    run(Compressed(FedAvg(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0), seed=1), grid, rounds=3)
    last = grid.sent[-1]
    grid.contexts[1].state.clear()
    seen.clear()
    (reply,) = grid.send_and_receive([last])
    assert Frame.from_bytes(reply.content["klms"]["reply"], Kind.LOST)
    assert list(reply.content) == ["klms"]
    assert not seen


@pytest.mark.parametrize("kind", [FedAvg, FedAdam, FedMedian])
def test_what_a_step_adds_or_leaves_out_is_not_carried_over(kind):
    """The strategy's result is the next model to aim at, with errors of steps that are as likely to be too long."""
    compressed, results = Compressed(kind(fraction_evaluate=0.0), up=4, down=0.5, seed=3), []
    aggregate = compressed._inner["aggregate_train"]

    def noted(number, replies):
        arrays, metrics = aggregate(number, replies)
        results.append(arrays["w"].numpy())
        return arrays, metrics

    compressed._inner["aggregate_train"] = noted
    result = run(compressed, InProcessGrid(client(compress()), 2), rounds=4)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), results[-1])


class Stubborn(FedAvg):
    """Returns a model of its own, whatever clients were given and send; it hardly changes."""

    def aggregate_train(self, server_round, replies):
        _, metrics = super().aggregate_train(server_round, replies)
        own = {name: Array(TARGET[name]) if name in TARGET else array for name, array in start_arrays().items()}
        return ArrayRecord({**own, "steps": Array(np.full(1, server_round))}), metrics


def test_the_model_of_a_strategy_that_does_not_start_from_that_of_clients_is_followed():
    seen = {}
    strategy = Compressed(Stubborn(fraction_evaluate=0.0), up=1, down=0.5, seed=3)
    run(strategy, InProcessGrid(client(compress(), seen=seen), 2), rounds=25)
    errors = [float(np.linalg.norm(models[0]["w"] - TARGET["w"])) for models in seen.values()]
    assert max(errors) < 3 * errors[0]
    assert errors[-1] < 0.1 * errors[0]


def oscillation(wrap, *mods):
    """Distances from the target with momentum on a model of the strategy's own, round by round."""
    seen = {}
    strategy = FedAvgM(fraction_evaluate=0.0, server_momentum=0.9, server_learning_rate=1.0)
    run(wrap(strategy), InProcessGrid(client(*mods, seen=seen), 2), rounds=25)
    return [float(np.linalg.norm(models[0]["w"] - TARGET["w"])) for models in seen.values()]


def test_momentum_on_a_model_of_its_own_goes_the_way_that_it_goes_without_klms():
    stock = oscillation(lambda strategy: strategy)
    held = oscillation(lambda strategy: Compressed(strategy, seed=3), compress())
    assert np.abs(np.subtract(stock, held)).max() < 0.2 * stock[0]


def test_rates_that_are_too_low_are_said_to_be_once(caplog):
    with caplog.at_level("WARNING", "klms"):
        errors = oscillation(lambda strategy: Compressed(strategy, up=4, down=0.3, seed=3), compress())
    assert errors[-1] > errors[0]
    assert caplog.text.count("times the harm that the default quality allows") == 1
    assert "bits up and" in caplog.text


class OneRecord(FedAvg):
    """Fills the same record anew in every round."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.kept = getattr(self, "kept", ArrayRecord())
        self.kept.update(arrays)
        return self.kept, metrics


def test_a_strategy_may_fill_the_same_record_in_every_round():
    ends = []
    for kind in (FedAvg, OneRecord):
        strategy = Compressed(kind(fraction_evaluate=0.0), up=4, down=1, seed=3)
        ends.append(run(strategy, InProcessGrid(client(compress(seed=1)), 2), rounds=6).arrays)
    assert all(np.array_equal(ends[0][name].numpy(), ends[1][name].numpy()) for name in SHAPES)


def test_rounds_of_32_bits_between_others_send_the_model_unchanged():
    seen = {}
    strategy = Compressed(FedAvg(fraction_evaluate=0.0), up=4, down=lambda r: 32 if r in (4, 5) else 1, seed=3)
    result = run(strategy, InProcessGrid(client(compress(), seen=seen), 2), rounds=8)
    assert [record["klms-ok"] for record in result.train_metrics_clientapp.values()] == [2] * 8
    bits = [record["klms-downlink-bytes"] / (2 * D / 8) for record in result.train_metrics_clientapp.values()]
    assert [number for number, sent in enumerate(bits, 1) if sent > 31] == [4, 5]
    assert distance(result.arrays) < 0.3


@pytest.mark.parametrize("shape", [[0, 1 << 62], [0, 1 << 70], [0] * 70, [-1], [1.5], "12", [True]])
def test_snapshots_of_shapes_that_numpy_cannot_make_are_refused(shape):
    described = zlib.compress(json.dumps({"names": ["w"], "types": ["<f4"], "shapes": [shape]}).encode())
    snapshot = b"\1" + len(described).to_bytes(4, "little") + described
    grid = InProcessGrid(client(compress()), 1)
    run(Compressed(FedAvg(min_train_nodes=1, min_available_nodes=1, min_evaluate_nodes=1), seed=1), grid, rounds=1)
    broadcast = Broadcast(1, bytes(8), 1, snapshot=snapshot).to_bytes()
    with pytest.raises(CorruptMessage, match="a shape"):
        Client().receive(forged(requests(grid)[0], broadcast))
