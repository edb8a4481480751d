"""What stock Flower apps and their users do, which earlier releases got wrong: one test or more for each."""

import logging
import random
import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedXgbBagging

from klms.errors import InvalidArgument
from klms.flower import Compressed, compress
from klms.frame import Frame, Kind
from tests.flower.in_process import InProcessGrid, counts_of

SHAPES = {"w": (60, 50), "head": (50, 20), "b": (50,)}
D = 60 * 50 + 50 * 20 + 50


def arrays(seed: int, shapes=SHAPES) -> dict[str, np.ndarray]:
    """Weights that are multiples of 1/256, whose differences float32 holds exactly."""
    rng = np.random.default_rng(seed)
    return {name: (rng.integers(-256, 256, shape) / 256).astype(np.float32) for name, shape in shapes.items()}


def record(values) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def values_of(found: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in found.items()}


START, TARGET = arrays(1), arrays(2)


def app(*mods, trains=None, replies=None, evaluates=None) -> ClientApp:
    """A stock app that goes half the way to the target, unless told what it trains, and what its replies hold."""
    made = ClientApp(mods=list(mods))

    def half_way(received, node):
        return {name: value + (TARGET[name] - value) / 2 for name, value in received.items()}

    @made.train()
    def train(message, context):
        received = values_of(message.content["arrays"])
        node = context.node_id
        new = (trains or half_way)(received, node)
        content = {"arrays": record(new), "metrics": MetricRecord({"num-examples": 10, "loss": 0.5})}
        return Message(RecordDict(replies(node, content) if replies else content), reply_to=message)

    @made.evaluate()
    def evaluate(message, context):
        content = {"metrics": MetricRecord({"num-examples": 10, "loss": 0.5})}
        more = evaluates(values_of(message.content["arrays"])) if evaluates else {}
        return Message(RecordDict({**content, **more}), reply_to=message)

    return made


def run(strategy, client, nodes=5, rounds=1, start=None, **grid):
    made = InProcessGrid(client, nodes, **grid)
    result = strategy.start(made, record(START if start is None else start), num_rounds=rounds, timeout=5)
    return result, made


class Wire:
    """Notes the bytes of replies before the server decodes them."""

    def __init__(self):
        self.bytes = {"train": 0, "evaluate": 0}
        self.array_records = 0

    def __call__(self, node: int, reply: Message) -> Message:
        self.bytes[reply.metadata.message_type] += len(reply.content["klms"]["reply"])
        self.array_records += len(reply.content.array_records)
        return reply


def trained(**own) -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, **own)


def distance(found, target=TARGET) -> float:
    off = sum(float(((value - target[name]) ** 2).sum()) for name, value in values_of(found).items())
    return (off / sum(float((value**2).sum()) for value in target.values())) ** 0.5


# 1. The majority wins over the usable


@pytest.mark.parametrize("without", ["metrics", "arrays"])
def test_two_replies_that_can_be_used_count_though_three_cannot(without):
    """Flower's whisper example answers with an empty record where a client has nothing to train on."""

    def replies(node, content):
        if node <= 3:
            content[without] = MetricRecord() if without == "metrics" else ArrayRecord()
        return content

    result, _ = run(Compressed(trained(), bits_per_parameter=4, seed=1), app(compress(), replies=replies))
    assert counts_of(result.train_metrics_clientapp[1]) == {"ok": 2, "mismatch": 3}
    assert distance(result.arrays) < 0.6 * distance(record(START))


# 2. Replies that are differences


def as_updates(received, node):
    return {name: 0.1 * (TARGET[name] - value) for name, value in received.items()}


class AddsUpdates(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        self.sent = values_of(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        update, metrics = super().aggregate_train(server_round, replies)
        return record({name: self.sent[name] + value for name, value in values_of(update).items()}), metrics


def test_differences_are_pointed_out_and_right_where_they_are_announced(caplog):
    with caplog.at_level(logging.WARNING):
        strategy = Compressed(AddsUpdates(fraction_evaluate=0.0), bits_per_parameter=4, seed=1)
        run(strategy, app(compress(), trains=as_updates))
    assert 'pass replies="updates"' in caplog.text
    caplog.clear()
    stock, _ = run(AddsUpdates(fraction_evaluate=0.0), app(trains=as_updates), rounds=4)
    strategy = Compressed(AddsUpdates(fraction_evaluate=0.0), bits_per_parameter=8, seed=1, replies="updates")
    with caplog.at_level(logging.WARNING):
        result, _ = run(strategy, app(compress(seed=1), trains=as_updates), rounds=4)
    assert "updates" not in caplog.text
    assert distance(result.arrays, values_of(stock.arrays)) < 0.05


# 3. Weights are changed silently


class Notes(FedAvg):
    """Keeps what it was given, and adds it up in the order of nodes, so that sums agree to the bit."""

    def aggregate_train(self, server_round, replies):
        found = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        self.given = [(dict(reply.content["metrics"]), values_of(reply.content["arrays"])) for reply in found]
        return super().aggregate_train(server_round, found)


@pytest.mark.parametrize("examples", [[10, 1000, 100_000, 10, 10], [300, 300, 300, 300, 60_000], [500, 500, 0, 0, 0]])
def test_by_default_a_strategy_gets_what_it_gets_without_klms_to_the_bit(examples):
    def replies(node, content):
        content["metrics"]["num-examples"] = examples[node - 1]
        return content

    def trains(received, node):
        return {name: value + np.float32(node * node / 16) for name, value in received.items()}

    inside, stock = Notes(fraction_evaluate=0.0), Notes(fraction_evaluate=0.0)
    result, _ = run(Compressed(inside, bits_per_parameter=32), app(compress(), trains=trains, replies=replies))
    expected, _ = run(stock, app(trains=trains, replies=replies))
    for (metrics, found), (other_metrics, other) in zip(inside.given, stock.given, strict=True):
        assert metrics == other_metrics
        assert all(np.array_equal(found[name], other[name]) for name in SHAPES)
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array.numpy())


HOSTILE = {
    "reversed and ten times as long": lambda update: -10 * update,
    "a million times as long": lambda update: 1e6 * update,
    "reversed, with ten million examples": lambda update: -update,
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_clients_do_not_win_against_robust(attack, count):
    def trains(received, node):
        own = np.random.default_rng(node)
        goal = {name: TARGET[name] + 0.1 * own.standard_normal(SHAPES[name]) for name in SHAPES}
        update = {name: 0.5 * (goal[name] - value) for name, value in received.items()}
        bad = HOSTILE[attack] if node <= count else lambda update: update
        return {name: (received[name] + bad(update[name])).astype(np.float32) for name in SHAPES}

    def replies(node, content):
        content["metrics"]["num-examples"] = 10**7 if node <= count and "examples" in attack else 10
        return content

    client = app(compress(seed=1), trains=trains, replies=replies)
    robust, _ = run(Compressed(trained(), bits_per_parameter=4, robust=0.3, seed=1), client, nodes=10, rounds=6)
    plain, _ = run(Compressed(trained(), bits_per_parameter=4, seed=1), client, nodes=10, rounds=6)
    assert distance(robust.arrays) < 0.15
    assert distance(plain.arrays) > 3 * distance(robust.arrays)
    assert all(metrics["klms-clipped"] > 0 for metrics in robust.train_metrics_clientapp.values())
    assert all("klms-clipped" not in metrics for metrics in plain.train_metrics_clientapp.values())


# 4. A client that always claims to have lost its model


def loses(node: int, kinds=("train", "evaluate")):
    """A mod before ours: this node answers every request by saying that it does not hold the model."""

    def mod(message, context, call_next):
        asked = message.content.config_records.get("klms")
        if context.node_id != node or asked is None or message.metadata.message_type not in kinds:
            return call_next(message, context)
        frame = Frame.from_bytes(asked["request"], Kind.REQUEST)
        lost = replace(frame, kind=Kind.LOST, body=b"").to_bytes()
        return Message(RecordDict({"klms": ConfigRecord({"reply": lost})}), reply_to=message)

    return mod


def test_a_model_that_is_lost_twice_in_evaluation_does_not_end_the_run():
    strategy = Compressed(FedAvg(), bits_per_parameter=1, seed=1)
    result, _ = run(strategy, app(loses(1, ("evaluate",)), compress()), rounds=4)
    assert all(counts_of(metrics)["ok"] >= 4 for metrics in result.train_metrics_clientapp.values())
    assert counts_of(result.evaluate_metrics_clientapp[1]) == {"lost": 1}
    assert result.evaluate_metrics_clientapp[4]["loss"] == pytest.approx(0.5)


def test_a_node_that_loses_its_model_in_every_round_is_left_out_and_costs_no_more_than_twice():
    def spent(*mods):
        strategy = Compressed(trained(), bits_per_parameter=1, seed=1)
        result, _ = run(strategy, app(*mods, compress(), trains=wander), nodes=3, rounds=36)
        return strategy.downlink_bytes, result

    def wander(received, node):
        rng = np.random.default_rng(node)
        return {n: value + 0.01 * rng.standard_normal(value.shape).astype(np.float32) for n, value in received.items()}

    honest, _ = spent()
    lost, result = spent(loses(1))
    assert lost < 2 * honest
    later = [metrics for number, metrics in result.train_metrics_clientapp.items() if number > 4]
    assert all(counts_of(metrics) == {"ok": 2, "lost": 1} for metrics in later)


# 5. Attributes set after wrapping


def test_settings_of_the_strategy_may_be_set_after_wrapping():
    inner = trained()
    strategy = Compressed(inner, bits_per_parameter=2)
    strategy.fraction_train = 0.4
    strategy.min_train_nodes = 1
    assert (inner.fraction_train, strategy.fraction_train) == (0.4, 0.4)
    _, grid = run(strategy, app(compress()))
    assert len(grid.sent) == 2
    strategy.notes = "of the user"
    assert strategy.notes == "of the user"
    assert not hasattr(inner, "notes")


# 6. The log says one thing and the wire another


class Copies(FedAvg):
    """Sends records of its own, which hold the same arrays."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, ArrayRecord(dict(arrays)), config, grid))
        for message in messages:
            copies = {name: Array(array.numpy().copy()) for name, array in message.content["arrays"].items()}
            message.content = RecordDict({"arrays": ArrayRecord(copies), "config": config})
        return messages


@pytest.mark.parametrize("inner", [FedAvg, Copies])
def test_small_models_and_copies_of_records_are_compressed_as_the_last_line_says(inner, caplog):
    strategy = Compressed(inner(fraction_evaluate=0.0), bits_per_parameter=1, seed=1)
    with caplog.at_level(logging.INFO, "flwr"):
        _, grid = run(strategy, app(compress()), rounds=6, tamper=(wire := Wire()))
    down = sum(len(message.content["klms"]["request"]) for message in grid.sent)
    up = wire.bytes["train"]
    assert not wire.array_records
    assert not any(message.content.array_records for message in grid.sent)
    assert 8 * down / (30 * D) < 2.2
    assert 8 * up / (30 * D) < 1.1
    (line,) = re.findall(r"klms: (\S+) bytes up, (\S+) bits per parameter; (\S+) bytes down, (\S+) bits", caplog.text)
    assert [int(number.replace(",", "")) for number in line[::2]] == [up, down]
    assert [float(bits) for bits in line[1::2]] == pytest.approx([8 * up / (30 * D), 8 * down / (30 * D)], rel=0.01)


# 7. Killed nodes and odd metrics


class SuperLink(InProcessGrid):
    """Messages have identifiers, and a node that is killed is answered for by the SuperLink, which is node 1."""

    killed = 4

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"message {len(self.sent)} to {node}"
            (reply,) = super().send_and_receive([message], timeout=timeout)
            if node == self.killed:
                reply = Message(Error(3, "node unavailable"), reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = 1
            reply.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
            replies.append(reply)
        return replies


def test_a_killed_node_is_missing_once_though_another_one_answers_for_it():
    strategy = Compressed(trained(), bits_per_parameter=2, seed=1)
    result = strategy.start(SuperLink(app(compress()), 5), record(START), num_rounds=3, timeout=5)
    for metrics in result.train_metrics_clientapp.values():
        assert counts_of(metrics) == {"ok": 4, "missing": 1}


def test_a_metric_that_is_not_a_number_costs_no_client_its_turn():
    def replies(node, content):
        content["metrics"]["loss"] = float("nan") if node == 1 else 0.5
        return content

    result, _ = run(Compressed(trained(), bits_per_parameter=2, seed=1), app(compress(), replies=replies))
    assert counts_of(result.train_metrics_clientapp[1]) == {"ok": 5}


# 8. Rare clients


@pytest.mark.parametrize(("energy", "times"), [(0.1, 11), (0.001, 7.5)])
def test_clients_that_come_once_in_thirty_rounds_cost_little(energy, times):
    """200 nodes, 3 % of them per round, updates of this share of the weights' energy."""
    shapes = {"w": (64, 64)}
    start, target = arrays(1, shapes), arrays(2, shapes)

    def trains(received, node):
        noise = np.random.default_rng(node).standard_normal((64, 64)) * np.sqrt(energy * np.var(start["w"]))
        return {"w": (received["w"] + 0.05 * (target["w"] - received["w"]) + noise).astype(np.float32)}

    random.seed(7)  # Flower samples nodes with it
    strategy = Compressed(trained(fraction_train=0.03), bits_per_parameter=1, seed=1)
    result, grid = run(strategy, app(compress(seed=1), trains=trains), nodes=200, rounds=60, start=start)
    assert all(counts_of(metrics) == {"ok": 6} for metrics in result.train_metrics_clientapp.values())
    stock = 2 * 4 * 64 * 64 * len(grid.sent)
    assert stock > times * (strategy.uplink_bytes + strategy.downlink_bytes)


# 9. Pre-trained models


def test_a_pre_trained_model_loses_nothing_to_speak_of():
    rng = np.random.default_rng(3)
    start = {"w": rng.standard_normal((128, 128)).astype(np.float32)}
    strategy = Compressed(FedAvg(), bits_per_parameter=0.5, seed=1)
    seen = []

    def trains(received, node):
        seen.append(received)
        return received

    result, _ = run(strategy, app(compress(), trains=trains), rounds=12, start=start)
    np.testing.assert_allclose(result.arrays["w"].numpy(), start["w"], atol=1e-6)
    away = [distance(record(received), start) for received in seen]
    assert away[0] < 0.16  # 2.8 bits leave 0.15; in a smaller model, headers and padded pieces take some of them
    assert away[-1] < 0.01


# 10. Arrays in evaluation replies


def test_arrays_in_evaluation_replies_are_compressed(caplog):
    got = []

    class Looks(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            replies = list(replies)
            got.extend(values_of(reply.content["arrays"]) for reply in replies)
            return super().aggregate_evaluate(server_round, replies)

    def personal(received):
        return {"arrays": record({name: value + np.float32(0.25) for name, value in received.items()})}

    strategy = Compressed(Looks(), bits_per_parameter=4, seed=1)
    with caplog.at_level(logging.INFO, "flwr"):
        result, _ = run(strategy, app(compress(), evaluates=personal), nodes=2, tamper=(wire := Wire()))
    (said,) = re.findall(r"bytes up, (\S+) bits per parameter", caplog.text)
    assert float(said) < 4.1
    assert not wire.array_records
    up = wire.bytes["evaluate"]
    assert 8 * up / (2 * D) < 4.1
    assert result.evaluate_metrics_clientapp[1]["klms-uplink-bytes"] == up
    held = values_of(record(strategy.server.model))
    for found in got:
        assert distance(record(found), {name: value + 0.25 for name, value in held.items()}) < 0.05


# 12. A clear word


def test_arguments_that_cannot_be_meant_are_explained():
    with pytest.raises(InvalidArgument, match="compressed already"):
        Compressed(Compressed(FedAvg()))
    with pytest.raises(InvalidArgument, match="did you mean 'bits_per_parameter'"):
        Compressed(FedAvg(), bit_per_parameter=1)
    with pytest.raises(InvalidArgument, match="did you mean 'levels'"):
        Compressed(FedAvg(), scheme="qsgd", level=3)


def test_a_large_buffer_of_booleans_is_named_where_it_leaves_no_room(caplog):
    start = {"w": START["w"], "mask": np.zeros(1_000_000, dtype=bool)}
    with caplog.at_level(logging.WARNING, "flwr"):
        result, _ = run(
            Compressed(trained(), bits_per_parameter=1), app(compress(), trains=lambda r, n: r), nodes=2, start=start
        )
    assert "no room beyond arrays that are sent unchanged" in caplog.text
    assert counts_of(result.train_metrics_clientapp[1])["ok"] == 2
    assert not result.arrays["mask"].numpy().any()


def test_a_round_of_evaluation_alone_is_no_failure():
    strategy = Compressed(FedAvg(fraction_train=0.0), bits_per_parameter=2, on_failure="stop")
    result, _ = run(strategy, app(compress()), rounds=2)
    assert len(result.evaluate_metrics_clientapp) == 2


class Grows(FedXgbBagging):
    def aggregate_train(self, server_round, replies):
        return next(iter(replies)).content["arrays"], MetricRecord()


def test_apps_without_floating_point_arrays_are_not_said_to_lack_the_mod(caplog):
    tree = {"0": np.frombuffer(b"tree", dtype=np.uint8)}
    client = app(compress(), trains=lambda received, node: tree)
    with caplog.at_level(logging.INFO, "flwr"):
        result, _ = run(Compressed(Grows(fraction_evaluate=0.0)), client, start=tree)
    assert counts_of(result.train_metrics_clientapp[1]) == {"ok": 5, "uncompressed": 5}
    assert "lack the mod" not in caplog.text
    assert caplog.text.count("there is no floating-point array") == 1


def test_a_model_of_a_few_parameters_is_said_to_be_small(caplog):
    small = {"w": np.zeros((5, 3), dtype=np.float32)}
    with caplog.at_level(logging.INFO, "flwr"):
        run(Compressed(trained()), app(compress(), trains=lambda received, node: received), start=small)
    assert "the model has only 15 parameters" in caplog.text


def test_metrics_hold_no_zeros():
    result, _ = run(Compressed(FedAvg(), bits_per_parameter=2), app(compress()), rounds=2)
    for metrics in (*result.train_metrics_clientapp.values(), *result.evaluate_metrics_clientapp.values()):
        assert all(value for name, value in metrics.items() if name.startswith("klms-") and "seconds" not in name)
