"""`Compressed` and `compress` around stock strategies, with clients in this process that behave and misbehave."""

import io
import itertools
import logging
import struct
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from klms.codec import inspect
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.container import read_arrays
from klms.errors import InvalidArgument, NothingTrained
from klms.exchange.request import RequestBody
from klms.flower import Compressed, compress
from klms.frame import Frame, Kind
from tests.flower.in_process import InProcessGrid, counts_of, with_head
from tests.support.messages import KEY, sealed

SHAPES = {"w": (60, 40), "bias": (40,), "head": (40, 10)}
TARGET = {name: np.random.default_rng(1).standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def stock_client(*mods, sees=("arrays", "config")) -> ClientApp:
    """Takes a step towards a target, which differs a little from client to client."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        assert tuple(message.content) == sees
        rng = np.random.default_rng(context.node_config["partition-id"])
        arrays = {}
        for name, array in message.content["arrays"].items():
            before = array.numpy()
            target = TARGET[name] + 0.05 * rng.standard_normal(before.shape)
            arrays[name] = Array((before + 0.5 * (target - before)).astype(np.float32))
        metrics = MetricRecord({"num-examples": 10, "loss": 0.5})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        assert list(message.content) == ["arrays", "config"]
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "loss": 0.1})}), reply_to=message)

    return app


def run(strategy, grid, rounds=10):
    start = ArrayRecord({name: Array(np.zeros(shape, dtype=np.float32)) for name, shape in SHAPES.items()})
    return strategy.start(grid, start, num_rounds=rounds, timeout=5)


def distance(result) -> float:
    """From the target, as a share of its norm."""
    off = sum(float(((array.numpy() - TARGET[name]) ** 2).sum()) for name, array in result.arrays.items())
    return (off / sum(float((array**2).sum()) for array in TARGET.values())) ** 0.5


def counts(result, round_=1) -> dict[str, int]:
    return counts_of(result.train_metrics_clientapp[round_])


def rounds_asked(grid) -> list[tuple[int, int]]:
    """The round and the number of every request for training."""
    train = [message for message in grid.sent if message.metadata.message_type == "train"]
    frames = [Frame.from_bytes(message.content["klms"]["request"], Kind.REQUEST) for message in train]
    return [(frame.first, frame.second) for frame in frames]


def test_the_two_lines_keep_fedavg_going_at_the_bits_that_were_said():
    result = run(Compressed(FedAvg(), bits_per_parameter=1.0), InProcessGrid(stock_client(compress()), 3))
    assert distance(result) < 0.1
    for metrics in result.train_metrics_clientapp.values():
        assert 0.75 < metrics["klms-bits-per-parameter"] <= 1.02
        assert metrics["klms-ok"] == 3
        assert metrics["loss"] == pytest.approx(0.5)
    assert len(result.evaluate_metrics_clientapp) == 10


def test_at_many_bits_models_are_almost_those_without_compression():
    plain = run(FedAvg(), InProcessGrid(stock_client(), 3), rounds=1)
    squeezed = run(Compressed(FedAvg(), bits_per_parameter=6), InProcessGrid(stock_client(compress()), 3), rounds=1)
    np.testing.assert_allclose(plain.arrays["bias"].numpy(), squeezed.arrays["bias"].numpy(), atol=0.03)
    assert np.abs(plain.arrays["w"].numpy() - squeezed.arrays["w"].numpy()).max() > 1e-3


def test_fedadam_sees_arrays_as_ever():
    strategy = Compressed(FedAdam(eta=0.3, tau=0.1), bits_per_parameter=2.0)
    result = run(strategy, InProcessGrid(stock_client(compress()), 3), rounds=20)
    assert distance(result) < 0.5
    assert result.train_metrics_clientapp[20]["klms-bits-per-parameter"] <= 2.04


@pytest.mark.parametrize("scheme", list(UPDATE_SCHEMES))
def test_every_scheme_trains(scheme):
    own = {"qsgd": {"bucket": 64}, "qsgd-klms": {"bucket": 64}, "topk": {"keep": 0.1}, "sparseloco": {"top": 400}}.get(
        scheme, {}
    )
    step = {"step": 0.1} if UPDATE_SCHEMES[scheme].directions_only else {}
    strategy = Compressed(FedAvg(), scheme=scheme, seed=3, **step, **own)
    result = run(strategy, InProcessGrid(stock_client(compress(seed=4)), 4), rounds=25)
    assert distance(result) < 0.6, scheme
    assert all(metrics["klms-ok"] == 4 for metrics in result.train_metrics_clientapp.values())


def test_the_same_seeds_give_the_same_model_and_other_rounds_other_randomness():
    def final(**settings):
        strategy = Compressed(FedAvg(), scheme="drive", seed=9, **settings)
        return run(strategy, InProcessGrid(stock_client(compress()), 3), rounds=2).arrays["w"].numpy()

    np.testing.assert_allclose(final(), final(), atol=1e-6)  # FedAvg adds them up in any order
    assert np.abs(final() - final(rounds_before=2)).max() > 1e-3


def test_a_server_that_resumes_tells_clients_the_absolute_round():
    grid = InProcessGrid(stock_client(compress()), 2)
    run(Compressed(FedAvg(), rounds_before=7), grid, rounds=2)
    assert sorted(rounds_asked(grid)) == [(8, 0), (8, 1), (9, 0), (9, 1)]


def test_clients_with_the_mod_serve_a_server_without():
    plain = run(FedAvg(), InProcessGrid(stock_client(), 3), rounds=2)
    modded = run(FedAvg(), InProcessGrid(stock_client(compress()), 3), rounds=2)
    np.testing.assert_allclose(plain.arrays["w"].numpy(), modded.arrays["w"].numpy(), atol=1e-6)


def test_clients_without_the_mod_take_part_uncompressed():
    grid = InProcessGrid(stock_client(sees=("arrays", "config", "klms")), 3)
    result = run(Compressed(FedAvg()), grid, rounds=8)
    assert distance(result) < 0.1
    assert counts(result) == {"ok": 3, "uncompressed": 3}
    assert result.train_metrics_clientapp[1]["klms-uplink-bytes"] == 3 * 4 * 2840
    assert result.train_metrics_clientapp[1]["klms-bits-per-parameter"] == 32


def test_what_error_feedback_does_not_send_is_in_the_context_of_the_node_and_sent_later():
    update = np.random.default_rng(2).standard_normal((50, 40)).astype(np.float32)
    app = ClientApp(mods=[compress()])

    @app.train()
    def train(message, context):
        arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + update)})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    grid = InProcessGrid(app, 1)
    inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1)
    start = ArrayRecord({"w": Array(np.zeros_like(update))})
    result = Compressed(inner, scheme="topk", keep=0.05).start(grid, start, num_rounds=3)
    kept, _ = read_arrays(Frame.from_bytes(grid.contexts[1].state["klms.state"]["state"].data, Kind.CLIENT).body)
    sent, waiting = result.arrays["w"].numpy(), kept["lost.vector"]
    assert 0 < np.count_nonzero(sent) <= 3 * 0.05 * update.size
    np.testing.assert_allclose(sent.ravel() + waiting, 3 * update.ravel(), atol=1e-4)


class Faults:
    """What the replies of nodes 1 to 6 become; the others are good."""

    def __init__(self):
        self.first: dict[int, bytes] = {}

    def __call__(self, node: int, reply: Message) -> Message | Error | None:
        if reply.metadata.message_type != "train" or node > 7:
            return reply
        record = reply.content["klms"]
        payload = record["reply"]
        earlier = self.first.setdefault(node, payload)
        if node == 1:
            return None
        if node == 2:
            record["reply"] = payload[: len(payload) // 2] + b"garbage" + payload[len(payload) // 2 :]
        if node == 3:
            record["reply"] = earlier
        if node == 4:
            reply.content = RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord({"a": 1})})
        if node == 5:
            reply.content["metrics"]["num-examples"] = float("nan")
        if node == 6:
            reply.content["klms"] = ConfigRecord({"reply": "text", "arrays": 3})
        if node == 7:
            return Error(2, "out of memory")
        return reply


def test_bad_replies_cost_their_clients_a_turn_and_nobody_else_anything():
    def good_only(node, reply):
        return reply if node > 7 or reply.metadata.message_type != "train" else None

    def result(tamper):
        grid = InProcessGrid(stock_client(compress(seed=1)), 10, tamper=tamper)
        return run(Compressed(FedAvg(), seed=1), grid, rounds=3)

    bad, good = result(Faults()), result(good_only)
    assert counts(bad, 1) == {"ok": 4, "error": 1, "missing": 1, "corrupt": 3, "mismatch": 1}
    assert counts(bad, 2) == {"ok": 3, "error": 1, "missing": 1, "corrupt": 3, "stale": 1, "mismatch": 1}
    assert distance(bad) == pytest.approx(distance(good), abs=0.05)


def test_the_state_is_untouched_by_the_bad_ones():
    """The same round, with the same good replies, with and without bad ones beside them."""

    def aggregate(tamper):
        strategy = Compressed(FedAvg(), seed=1)
        grid = InProcessGrid(stock_client(compress(seed=1)), 4, tamper=tamper)
        arrays = ArrayRecord({name: Array(np.zeros(shape, dtype=np.float32)) for name, shape in SHAPES.items()})
        messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
        replies = grid.send_and_receive(sorted(messages, key=lambda message: message.metadata.dst_node_id))
        return strategy.aggregate_train(1, replies)[0]

    def garbage(node, reply):
        if node <= 2:
            reply.content["klms"]["reply"] = b"KF" + bytes(40)
        return reply

    with_bad, without = aggregate(garbage), aggregate(lambda node, reply: reply if node > 2 else None)
    for name in SHAPES:
        np.testing.assert_array_equal(with_bad[name].numpy(), without[name].numpy())


def test_with_too_few_sound_replies_the_model_stays():
    strategy = Compressed(FedAvg(), min_replies=3)
    grid = InProcessGrid(stock_client(compress()), 3, tamper=lambda node, reply: reply if node > 1 else None)
    lost = {1: True}

    def lose_one_in_round_1(node, reply):
        return None if node == 1 and lost.pop(1, False) else reply

    grid.tamper = lose_one_in_round_1
    result = run(strategy, grid, rounds=2)
    assert counts(result) == {"ok": 2, "missing": 1}
    assert counts(result, 2) == {"ok": 3}


def test_a_run_in_which_no_reply_counts_is_an_error_and_not_a_model():
    grid = InProcessGrid(stock_client(compress()), 3, tamper=lambda node, reply: reply if node > 1 else None)
    with pytest.raises(NothingTrained, match="no reply counted"):
        run(Compressed(FedAvg(), min_replies=3), grid, rounds=2)
    with pytest.raises(NothingTrained, match="round 1: 2 replies count, 3 are needed"):
        run(Compressed(FedAvg(), min_replies=3, on_failure="stop"), grid, rounds=2)


def test_the_error_of_a_run_without_training_names_the_first_failure():
    grid = InProcessGrid(stock_client(compress), 2)  # the parentheses are missing
    with pytest.raises(NothingTrained, match=r"the first failure was at node \d+: .*write mods=\[compress\(\)\]"):
        run(Compressed(FedAvg()), grid, rounds=1)


def test_a_client_whose_update_is_not_finite_fails_alone():
    def client(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 0:
            arrays = reply.content["arrays"]
            reply.content["arrays"] = ArrayRecord({k: Array(a.numpy() * np.float32(np.nan)) for k, a in arrays.items()})
        return reply

    result = run(Compressed(FedAvg()), InProcessGrid(stock_client(compress(), client), 3), rounds=1)
    assert counts(result) == {"ok": 2, "error": 1}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scheme": "signsgd"}, "step=0.002"),
        ({"min_replies": 0}, "min_replies"),
        ({"step": float("nan")}, "step must be"),
        ({"seed": 2**64}, "seed"),
        ({"scheme": "edne"}, "did you mean 'eden'"),
    ],
)
def test_wrong_settings_are_explained(settings, words):
    with pytest.raises(InvalidArgument, match=words):
        Compressed(FedAvg(), **settings)


def one_round(tamper, nodes=4, strategy=None, **settings):
    """The arrays, metrics and strategy after a round in which `tamper` saw the replies."""
    strategy = Compressed(strategy or FedAvg(), seed=1, **settings)
    grid = InProcessGrid(stock_client(compress(seed=1)), nodes, tamper=tamper)
    arrays = ArrayRecord({name: Array(np.zeros(shape, dtype=np.float32)) for name, shape in SHAPES.items()})
    messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    replies = grid.send_and_receive(sorted(messages, key=lambda message: message.metadata.dst_node_id))
    return *strategy.aggregate_train(1, replies), strategy


def raw(data: bytes):
    def tamper(node, reply):
        if node == 1:
            arrays = {name: Array("float32", shape, "numpy.ndarray", data) for name, shape in SHAPES.items()}
            metrics = reply.content["metrics"]
            reply.content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return reply

    return tamper


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04" + bytes(50),
        archive(),
        npy("{'a': ("),
        npy("  x\n y"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 27 + ",)}"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,)}"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + b"cos\nsystem\n(S'true'\ntR.",
    ],
)
def test_arrays_that_are_none_cost_nobody_else_anything(data):
    _, metrics, _ = one_round(raw(data))
    assert (metrics["klms-ok"], metrics["klms-mismatch"]) == (3, 1)


@pytest.mark.parametrize(
    "change",
    [{"num-examples": -5}, {"num-examples": 1.7e308}, {"num-examples": float("inf")}, {"extra": 1}],
)
@pytest.mark.parametrize("scheme", ["auto", "qsgd-klms"])
def test_odd_metrics_leave_no_trace_in_model_or_side_information(change, scheme):
    def odd(node, reply):
        if node == 1:
            reply.content["metrics"].update(change)
        return reply

    with_odd, metrics, strategy = one_round(odd, scheme=scheme)
    without, _, other = one_round(lambda node, reply: None if node == 1 else reply, scheme=scheme)
    assert metrics["klms-ok"] == 3
    for name in SHAPES:
        np.testing.assert_array_equal(with_odd[name].numpy(), without[name].numpy())
    side, other_side = strategy.server.uplink.coder.side, other.server.uplink.coder.side
    assert side.keys() == other_side.keys()
    assert bool(side) == (scheme == "qsgd-klms")
    for name in side:
        np.testing.assert_array_equal(side[name], other_side[name])


def test_of_two_replies_the_one_that_can_be_weighed_counts():
    def without_weight(node, reply):
        if node == 1:
            del reply.content["metrics"]["num-examples"]
        return reply

    arrays, metrics, _ = one_round(without_weight, nodes=2)
    assert (metrics["klms-ok"], metrics["klms-mismatch"]) == (1, 1)
    assert arrays is not None


def test_a_node_that_answers_twice_does_not_stand_in_for_one_that_is_missing():
    strategy = Compressed(FedAvg(), seed=1)
    grid = InProcessGrid(stock_client(compress(seed=1)), 4)
    arrays = ArrayRecord({name: Array(np.zeros(shape, dtype=np.float32)) for name, shape in SHAPES.items()})
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    first, second, *_ = grid.send_and_receive(messages)
    _, metrics = strategy.aggregate_train(1, [first, first, second, second])
    assert counts_of(metrics) == {"ok": 2, "mismatch": 2, "missing": 2}


def test_a_client_s_choice_of_dtype_is_not_everybody_s():
    def short(node, reply):  # dtypes are listed, that of the first array is another one
        if node == 1:
            record = reply.content["klms"]
            record["reply"] = with_head(record["reply"], lambda head: b"\x01\x01\x02\x02" + head[1:])
        return reply

    arrays, metrics, _ = one_round(short)
    assert (metrics["klms-ok"], metrics["klms-mismatch"]) == (3, 1)
    assert arrays["w"].numpy().dtype == np.float32


def test_a_message_that_claims_out_of_proportion_is_counted_and_left_out():
    def boast(node, reply):
        if node == 1:
            frame = Frame.from_bytes(reply.content["klms"]["reply"], Kind.REPLY)
            start = 9 + int.from_bytes(frame.body[5:9], "little")
            message = frame.body[start:]
            kl = struct.pack("<f", 2000 / inspect(message).blocks)  # bits in all, of 2,800 that are possible
            forged = sealed(message[:24] + kl + message[28:-4], KEY)
            reply.content["klms"]["reply"] = replace(frame, body=frame.body[:start] + forged).to_bytes()
        return reply

    for factor, expected in ((2.0, (3, 1)), (0.0, (4, 0))):
        _, metrics, _ = one_round(boast, scheme="signsgd-klms", step=0.01, message_factor=factor)
        assert (metrics["klms-ok"], metrics.get("klms-outsized", 0)) == expected


def test_several_messages_to_a_node_may_be_answered_in_any_order():
    class Twice(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            messages = list(super().configure_train(server_round, arrays, config, grid))
            return messages + list(super().configure_train(server_round, arrays, config, grid))

    strategy = Compressed(Twice())
    grid = InProcessGrid(stock_client(compress()), 2)
    arrays = ArrayRecord({name: Array(np.zeros(shape, dtype=np.float32)) for name, shape in SHAPES.items()})
    replies = grid.send_and_receive(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    _, metrics = strategy.aggregate_train(1, replies[::-1])
    assert metrics["klms-ok"] == 4


def test_torch_buffers_of_integers_stay_integers_though_fedavg_averages_them():
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 32)
            self.norm = torch.nn.BatchNorm1d(32)
            self.register_buffer("position_ids", torch.arange(16).expand(1, -1).clone())

    app = ClientApp(mods=[compress()])

    @app.train()
    def train(message, context):
        net = Net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        net.norm(net.layer(torch.ones(8, 64)))
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    strategy = Compressed(FedAvg(fraction_evaluate=0.0), bits_per_parameter=4.0)
    result = strategy.start(InProcessGrid(app, 2), ArrayRecord(Net().state_dict()), num_rounds=3)
    assert all(metrics["klms-ok"] == 2 for metrics in result.train_metrics_clientapp.values())
    assert result.arrays["position_ids"].numpy().tolist() == [list(range(16))]
    assert result.arrays["norm.num_batches_tracked"].numpy() == 3
    assert (result.arrays["norm.running_var"].numpy() >= 0).all()


def test_clipping_at_clients_is_refused_and_at_the_server_taken():
    from flwr.serverapp.strategy import (
        DifferentialPrivacyClientSideFixedClipping,
        DifferentialPrivacyServerSideFixedClipping,
    )

    with pytest.raises(InvalidArgument, match="clips at the server"):
        Compressed(DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0.1, 1.0, 3))
    inner = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, clipping_norm=1.0, num_sampled_clients=3)
    result = run(Compressed(inner), InProcessGrid(stock_client(compress()), 3), rounds=1)
    norm = sum(float((array.numpy() ** 2).sum()) for array in result.arrays.values()) ** 0.5
    assert norm <= 1.0 + 1e-3


def test_every_start_without_a_seed_draws_its_own():
    grid, strategy = InProcessGrid(stock_client(compress()), 2), Compressed(FedAvg())
    run(strategy, grid, rounds=1)
    run(strategy, grid, rounds=1)
    requests = [m.content["klms"]["request"] for m in grid.sent if m.metadata.message_type == "train"]
    bodies = [RequestBody.from_bytes(Frame.from_bytes(data, Kind.REQUEST).body) for data in requests]
    seeds = [body.terms["seed"] for body in bodies]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


def test_every_flipped_bit_of_a_payload_costs_its_client_the_turn():
    """The frame's checksum covers every byte."""
    grid = InProcessGrid(stock_client(compress(seed=1)), 1)
    inner = FedAvg(min_available_nodes=1, min_train_nodes=1, min_evaluate_nodes=1)  # it would wait for a second node
    strategy = Compressed(inner, seed=1, bits_per_parameter=1.0)
    arrays = ArrayRecord({name: Array(np.zeros(shape, dtype=np.float32)) for name, shape in SHAPES.items()})

    def outcome(change):
        (reply,) = grid.send_and_receive(strategy.configure_train(next(number), arrays, ConfigRecord(), grid))
        reply.content["klms"]["reply"] = change(reply.content["klms"]["reply"])
        return strategy.aggregate_train(1, [reply])[1]

    def flipped(payload, at, flip):
        at %= len(payload)
        return payload[:at] + bytes([payload[at] ^ flip]) + payload[at + 1 :]

    number = itertools.count(1)
    length = int(outcome(lambda payload: payload)["klms-uplink-bytes"])
    assert length > 200
    rng = np.random.default_rng(0)
    for at in [*range(0, 40), *range(40, length, 7)]:
        flip = 1 << int(rng.integers(8))
        metrics = outcome(lambda p, at=at, flip=flip: flipped(p, at, flip))
        assert counts_of(metrics) == {"corrupt": 1}, at
    for cut in (0, 10, 27, 28, 40, -1):
        assert outcome(lambda p, cut=cut: p[:cut])["klms-corrupt"] == 1
    assert outcome(lambda p: p + b"x")["klms-corrupt"] == 1


def test_a_model_with_nothing_to_compress_has_no_message():
    app = ClientApp(mods=[compress()])

    @app.train()
    def train(message, context):
        arrays = {name: Array(array.numpy() + np.float32(1)) for name, array in message.content["arrays"].items()}
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    def longer(node, reply):
        if node == 1 and reply.metadata.message_type == "train":
            reply.content["klms"]["reply"] += b"x"
        return reply

    grid = InProcessGrid(app, 3, tamper=longer)
    start = ArrayRecord({"b": Array(np.zeros(5, dtype=np.float32))})
    result = Compressed(FedAvg(fraction_evaluate=0.0)).start(grid, start, num_rounds=1)
    assert counts(result) == {"ok": 2, "corrupt": 1}
    assert result.arrays["b"].numpy().tolist() == [1.0] * 5


def test_a_round_without_enough_replies_leaves_the_side_information_unchanged():
    strategy = Compressed(FedAvg(), scheme="qsgd-klms", seed=1, min_replies=2)
    grid = InProcessGrid(stock_client(compress(seed=1)), 2)
    arrays = ArrayRecord({name: Array(np.zeros(shape, dtype=np.float32)) for name, shape in SHAPES.items()})

    def counts_after(number, lose):
        replies = list(grid.send_and_receive(strategy.configure_train(number, arrays, ConfigRecord(), grid)))
        strategy.aggregate_train(number, replies[lose:])
        side = strategy.server.uplink.coder.side
        return int(side["count_of"]), int(side["counts"].sum())

    assert counts_after(1, lose=1) == (0, 0)
    count, symbols = counts_after(2, lose=0)
    assert count == 2  # the reply of the round before is not among them
    assert symbols > 0


def test_a_damaged_reply_does_not_take_the_place_of_a_sound_one():
    class Twice(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            messages = list(super().configure_train(server_round, arrays, config, grid))
            return messages + list(super().configure_train(server_round, arrays, config, grid))

    strategy = Compressed(Twice())
    grid = InProcessGrid(stock_client(compress()), 2)
    arrays = ArrayRecord({name: Array(np.zeros(shape, dtype=np.float32)) for name, shape in SHAPES.items()})
    replies = grid.send_and_receive(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    replies[-1].content["klms"]["reply"] = b"garbage"
    _, metrics = strategy.aggregate_train(1, replies[::-1])
    assert (metrics["klms-ok"], metrics["klms-corrupt"]) == (3, 1)


def test_a_result_that_is_not_finite_leaves_the_model_unchanged():
    class Broken(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            spoiled = {name: Array(array.numpy() * np.float32(np.nan)) for name, array in arrays.items()}
            return (ArrayRecord(spoiled) if server_round == 2 else arrays), metrics

    one = run(Compressed(FedAvg(), scheme="float32", down=32), InProcessGrid(stock_client(compress()), 3), rounds=2)
    two = run(Compressed(Broken(), scheme="float32", down=32), InProcessGrid(stock_client(compress()), 3), rounds=3)
    assert two.train_metrics_clientapp[2]["klms-undone"] == 1
    assert distance(two) == pytest.approx(distance(one), abs=1e-3)


@pytest.mark.parametrize("long", [-1.0, 1e9])
def test_encoding_that_takes_long_leaves_a_line_in_the_log(long, caplog, monkeypatch):
    monkeypatch.setattr("klms.exchange.client._LONG", long)
    with caplog.at_level(logging.INFO, "flwr"):
        run(Compressed(FedAvg(), seed=1), InProcessGrid(stock_client(compress()), 2), rounds=1)
    assert caplog.text.count("parameters became") == (2 if long < 0 else 0)
