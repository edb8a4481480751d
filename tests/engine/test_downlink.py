"""How clients come to hold the server's state: any path leads to the same one, and no bytes lead to another."""

import bz2
import io
import struct
import tracemalloc
import zipfile
import zlib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from klms.engine import local
from klms.engine.broadcast import OVERHEAD, Broadcast, History, digest_of
from klms.engine.downlink import Downlink, Relay
from klms.engine.federation import Federation
from klms.engine.rounds import one_round
from klms.engine.snapshot import read_snapshot, write_snapshot
from klms.errors import CorruptMessage, InvalidArgument, KLMSError, OutOfSync, UnsupportedMessage
from klms.methods.state import State
from klms.runs.settings import resolve

torch = pytest.importorskip("torch")

RUNS = {
    "fedpm-klms": {},
    "qsgd-klms": {},
    "klms": {"rate": 1.0},
    "fedpm-klms reset": {"reset": 3},
    "marina": {"full": 0.05},
    "sgld-klms": {},
}
INPUTS = 20


def points(seed, count=40):
    x = np.random.default_rng(seed).standard_normal((count, INPUTS)).astype(np.float32)
    return x, (x[:, 0] - 2 * x[:, 1] > 0).astype(np.int64)


def config_of(run, **given):
    common = {"clients": 6, "per_round": 2, "rounds": 8, "epochs": 1, "batch": 20, "evaluate_every": 4, "seed": 5}
    own = {"data": "own", "model": "own"}
    return resolve(run.split()[0], profile="small", given={**common, **own, **RUNS.get(run, {}), **given})


def federation_of(config, hidden=250):
    """A network of 23 parameters per hidden unit; by default enough of them for a snapshot to use a table of values."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 2))
    return Federation.of(config, model, [points(client) for client in range(config.clients)], points(99, 100))


def trained(config, federation, state=None, workers=1):
    return list(local.run(federation, config, state or federation.method.init(), workers))


@cache
def run_of(run, **given):
    config = config_of(run, **given)
    federation = federation_of(config)
    return config, federation, trained(config, federation)


def figures(results, *without):
    return [result.record.model_dump(exclude={"seconds", *without}) for result in results]


def arrays(state):
    return {name: np.asarray(array).tobytes() for name, array in {**state.shared, **state.private}.items()}


def states_before(run, **given):
    """The states from which the rounds start."""
    _, federation, results = run_of(run, **given)
    return [federation.method.init(), *(result.state for result in results)]


@pytest.mark.parametrize("run", RUNS)
def test_relayed_messages_and_snapshots_lead_to_the_same_run(run):
    _, _, relayed = run_of(run)
    _, _, whole = run_of(run, downlink="snapshot")
    assert figures(relayed, "downlink_bytes") == figures(whole, "downlink_bytes")
    assert arrays(relayed[-1].state) == arrays(whole[-1].state)
    sent, all_of_it = (sum(result.record.downlink_bytes for result in results) for results in (relayed, whole))
    if run == "sgld-klms":  # two of its messages are larger than the state
        assert sent <= all_of_it
    else:
        assert sent < all_of_it
    assert relayed[0].record.downlink_bytes == 2 * OVERHEAD  # the first state follows from the seed


@pytest.mark.parametrize("mode", ["auto", "coded"])
@pytest.mark.parametrize("run", ["fedpm-klms", "fedpm-klms reset", "qsgd-klms", "klms"])
def test_a_client_that_comes_every_few_rounds_or_late_reaches_the_state_of_the_server(run, mode):
    config, federation, _ = run_of(run, rounds=13, downlink=mode)
    downlink = Downlink(federation.method, config)
    opened = [downlink.open(state) for state in states_before(run, rounds=13, downlink=mode)]
    kinds = set()
    for gap in range(1, 7):
        held = None
        for broadcast in opened[gap - 1 :: gap]:
            known = 0 if held is None else held.round
            message = broadcast.sender.message(known)
            held = downlink.follow(message, held)
            assert {n: a.tobytes() for n, a in held.shared.items()} == {
                n: a.tobytes() for n, a in broadcast.state.shared.items()
            }
            assert held.round == broadcast.state.round
            steps, snapshot = broadcast.history.size_since(known), len(broadcast.snapshot())
            kinds.add(Broadcast.from_bytes(message).snapshot is None)
            if steps is None:
                assert len(message) == snapshot
            elif steps > broadcast.sender.worth_a_snapshot:
                assert len(message) == min(steps + OVERHEAD, snapshot)
            else:
                assert len(message) == steps + OVERHEAD
            assert len(message) <= snapshot
    assert True in kinds
    late = opened[10]
    assert downlink.digest(downlink.follow(late.sender.message(0), None)) == late.sender.digest
    assert downlink.digest(downlink.follow(late.snapshot(), None)) == late.sender.digest
    # One that is further than the server thinks takes only the steps that it lacks.
    ahead = downlink.follow(opened[9].snapshot(), None)
    assert downlink.digest(downlink.follow(late.sender.message(8), ahead)) == late.sender.digest


def test_a_client_that_holds_another_state_is_told_so():
    config, federation, _ = run_of("fedpm-klms")
    downlink = Downlink(federation.method, config)
    states = states_before("fedpm-klms")
    held = downlink.follow(downlink.open(states[4]).snapshot(), None)
    message = downlink.open(states[6]).sender.message(4)
    theta = held.vector("theta").copy()
    theta[7] = 0.25
    wrong = [
        None,
        replace(held, round=3),
        replace(held, round=7),
        replace(held, shared={**held.shared, "theta": theta}),
        replace(held, shared={**held.shared, "theta": theta * np.nan}),
        replace(held, shared={**held.shared, "theta": theta[:-1]}),
        replace(held, shared={"theta": held.shared["theta"]}),
        replace(held, shared={}),
    ]
    for state in wrong:
        with pytest.raises(OutOfSync):
            downlink.follow(message, state)
    same = downlink.open(states[4]).sender.message(4)
    for state in wrong:
        with pytest.raises(OutOfSync):
            downlink.follow(same, state)
    assert downlink.follow(message, held).round == 6


def test_what_the_server_keeps_for_those_who_were_away_is_never_larger_than_the_state():
    for run, mode in [("fedpm-klms", "auto"), ("klms", "auto"), ("klms", "coded"), ("sgld-klms", "auto")]:
        for state in states_before(run, **({"rounds": 13, "downlink": mode} if mode == "coded" else {})):
            steps = state.downlink.get("steps", np.zeros(0, dtype=np.uint8))
            assert steps.nbytes <= sum(array.nbytes for array in state.shared.values())
    config = config_of("fedavg", rounds=30)  # a tiny model, whose float32 messages are larger than itself
    for result in trained(config, federation_of(config, hidden=1)):
        assert result.state.downlink["steps"].size == result.state.downlink["lengths"].size == 0
    history = History(0)
    for number in range(5000):
        history = history.then(b"" if number % 3 else bytes(number % 50), 400)  # rounds without a message are free
        assert sum(map(len, history.steps)) + 4 * len(history.steps) <= 400
    assert history.number == 5000
    assert len(history.steps) > 10


def test_a_round_s_messages_are_dropped_once_a_snapshot_is_smaller():
    state = State(0, {"weights": np.zeros(100_000, dtype=np.float32)})
    relay = Relay(state)
    tracemalloc.start()
    for client in range(200):
        relay.add(client, np.full(100_000, client, dtype=np.float32).tobytes())  # 400 kB each, 80 MB in all
    assert tracemalloc.get_traced_memory()[1] < 4e6
    tracemalloc.stop()
    assert relay.parts == []
    relay.add(200, b"small")  # not relayed either: a step without the others would be another step
    assert relay.parts == []


# Coded differences


@pytest.mark.parametrize("run", ["klms", "qsgd-klms", "fedpm-klms", "sgld-klms"])
def test_a_coded_run_learns_on_few_bits_and_is_evaluated_at_the_server_s_own_weights(run):
    config, federation, coded = run_of(run, rounds=13, downlink="coded")
    name = federation.method.vector_name
    downlink = Downlink(federation.method, config)
    state = coded[-1].state
    seen = downlink.open(state).state.vector(name)
    own = state.vector(name)
    if name == "theta":
        margin = np.float32(config.margin)
        for broadcast in map(downlink.open, states_before(run, rounds=13, downlink="coded")):
            theta = broadcast.state.vector("theta")
            assert margin <= theta.min() <= theta.max() <= np.float32(1 - config.margin)
    assert np.isfinite(own).all()
    assert 0 < np.linalg.norm(seen - own) < 0.5 * np.linalg.norm(own)
    if run == "klms":  # at one bit for each parameter, beside heads
        plain = run_of(run, rounds=13)[2]
        assert coded[-1].record.accuracy > plain[-1].record.accuracy - 0.15
        for held, number in [(11, 1), (9, 3)]:
            size = downlink.open(coded[11].state).history.size_since(held)
            assert size <= number * (federation.method.layout.d / 8 + 60)


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_with_a_target_that_stays_clients_come_to_hold_it(rate):
    config = config_of("klms", downlink="coded", down_rate=rate)
    federation = federation_of(config)
    downlink = Downlink(federation.method, config)
    first = federation.method.init()
    rng = np.random.default_rng(0)
    target = first.vector("weights") + rng.standard_normal(first.vector("weights").size).astype(np.float32)
    state, held, errors = first, None, []
    for _ in range(40):
        opened = downlink.open(state)
        held = downlink.follow(opened.message(0), held)
        assert np.array_equal(held.vector("weights"), opened.state.vector("weights"))
        errors.append(float(np.linalg.norm(target - held.vector("weights"))))
        after = opened.state.after(opened.state.shared)
        closed = downlink.close(state, opened, after, [0], Relay(state))
        if state.round:  # nobody answered: the server keeps its own weights, not what it could send of them
            assert np.array_equal(closed.vector("weights"), state.vector("weights"))
        state = replace(closed, shared={**closed.shared, "weights": target})
    assert errors[10] < 0.4 * errors[0]
    assert errors[-1] < 0.05 * errors[0] if rate == 1.0 else errors[-1] < 0.2 * errors[0]


def test_a_coded_round_without_answers_keeps_the_server_s_theta():
    config, federation, results = run_of("fedpm-klms", rounds=13, downlink="coded")

    class Nobody:
        def run(self, broadcast, wanted):
            return iter(())

        def enough(self, count):
            return False

        def report(self):
            return {}

    state = results[5].state
    passed = one_round(federation, config, state, Nobody()).state
    assert passed.round == state.round + 1
    assert np.array_equal(passed.vector("theta"), state.vector("theta"))
    assert not np.array_equal(
        Downlink(federation.method, config).open(state).state.vector("theta"), state.vector("theta")
    )


def test_marina_has_no_coded_downlink():
    config = config_of("marina", downlink="coded")
    federation = federation_of(config)
    with pytest.raises(InvalidArgument, match="marina has no coded downlink"):
        trained(config, federation)


@pytest.mark.parametrize("mode", ["auto", "snapshot", "coded"])
@pytest.mark.parametrize("run", ["fedpm-klms reset", "qsgd-klms", "sgld-klms", "topk"])
def test_a_run_that_was_stopped_anywhere_goes_on_as_if_it_was_not(run, mode):
    config, federation, whole = run_of(run, downlink=mode)
    for stop in (1, 4, 6):
        stored = State.from_bytes(whole[stop - 1].state.to_bytes(private=True))
        rest = trained(config, federation, stored)
        assert figures(rest) == figures(whole[stop:])
        assert rest[-1].state.to_bytes(private=True) == whole[-1].state.to_bytes(private=True)


def test_two_workers_go_on_with_a_coded_run_as_one_does():
    config, federation, whole = run_of("klms", rounds=13, downlink="coded")
    stored = State.from_bytes(whole[10].state.to_bytes(private=True))
    rest = trained(config, federation, stored, workers=2)
    assert figures(rest) == figures(whole[11:])
    assert rest[-1].state.to_bytes(private=True) == whole[-1].state.to_bytes(private=True)


# Hostile or damaged broadcasts


def sealed(kind, base, number, digest, body, version=1):
    message = struct.pack("<2sBBII8s", b"KD", version, kind, base, number, digest) + body
    return message + struct.pack("<I", zlib.crc32(message))


def archive_of(members, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, array in members:
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def small():
    """A downlink of a tiny model, a state that a client holds, and messages that lead on from it."""
    config = config_of("fedpm-klms", rounds=4, downlink="coded")
    federation = federation_of(config, hidden=12)
    states = [federation.method.init(), *(result.state for result in trained(config, federation))]
    coded = Downlink(federation.method, config)
    relayed = config_of("fedpm-klms", rounds=4)
    auto = Downlink(federation.method, relayed)
    own = [federation.method.init(), *(result.state for result in trained(relayed, federation))]
    return {
        "coded": (coded, coded.open(states[1]).state, coded.open(states[3]).sender, 1),
        "auto": (auto, auto.open(own[1]).state, auto.open(own[3]).sender, 1),
    }


@pytest.mark.parametrize("mode", ["auto", "coded"])
def test_every_truncation_and_every_flipped_bit_is_noticed(small, mode):
    downlink, held, sender, known = small[mode]
    steps = Broadcast(3, sender.digest, known, sender.history.since(known) or (b"", b"")).to_bytes()
    for message in (steps, sender.message(None)):
        for end in range(len(message)):
            with pytest.raises(KLMSError):
                Broadcast.from_bytes(message[:end])
        with pytest.raises(CorruptMessage):
            Broadcast.from_bytes(message + b"\0")
        rng = np.random.default_rng(0)
        for place in [*range(24), *rng.integers(24, len(message), 300).tolist()]:
            damaged = bytearray(message)
            damaged[place] ^= 1 << int(rng.integers(8))
            with pytest.raises(KLMSError):
                downlink.follow(bytes(damaged), held)
            damaged[-4:] = struct.pack("<I", zlib.crc32(damaged[:-4]))  # with the checksum put right
            try:
                reached = downlink.follow(bytes(damaged), held)
            except KLMSError:
                continue
            assert downlink.digest(reached) == sender.digest  # for example a flip in the date of an archive


def test_forged_heads_are_refused(small):
    downlink, held, sender, _ = small["auto"]
    (first, second) = sender.history.since(1) or (b"", b"")
    body = struct.pack("<I", len(first)) + first + struct.pack("<I", len(second)) + second
    snapshot = Broadcast.from_bytes(sender.message(None)).snapshot
    digest = sender.digest
    with pytest.raises(UnsupportedMessage, match="version 2"):
        downlink.follow(sealed(0, 1, 3, digest, body, version=2), held)
    forged = [
        sealed(2, 1, 3, digest, body),
        sealed(255, 1, 1, digest, b""),
        sealed(0, 1, 4, digest, body),
        sealed(0, 1, 2, digest, body),
        sealed(0, 3, 1, digest, body),
        sealed(0, 3, 1, digest, b""),
        sealed(0, 0, 2**32 - 1, digest, body),
        sealed(0, 0, 2**32 - 1, digest, b""),
        sealed(0, 1, 2, digest, struct.pack("<I", 2**32 - 1) + first),
        sealed(0, 1, 2, digest, b"\0"),
        sealed(0, 1, 3, digest, body[:-1]),
        sealed(0, 1, 3, digest, body + b"\0\0\0\0"),
        sealed(1, 1, 3, digest, b""),
        sealed(1, 1, 3, digest, body),
        sealed(1, 3, 4, digest, snapshot),  # a state by another number would be trained on with other keys
        sealed(1, 3, 2, digest, snapshot),
        b"", b"KD", b"KF" + bytes(40),
    ]  # fmt: skip
    for message in forged:
        with pytest.raises(CorruptMessage):
            downlink.follow(message, held)
    for base, number in [(0, 2), (2, 4), (7, 9)]:  # sound, but steps by other numbers
        with pytest.raises(OutOfSync):
            downlink.follow(sealed(0, base, number, digest, body), held)
    many = sealed(0, 1, 20_001, digest, bytes(4) * 20_000)
    with pytest.raises(OutOfSync):
        downlink.follow(many, held)


def test_forged_relayed_messages_are_refused(small):
    downlink, held, sender, _ = small["auto"]
    honest = sender.digest
    for step in (b"1234567", struct.pack("<II", 0, 100) + b"short", struct.pack("<II", 2**32 - 1, 2**32 - 1), bytes(8)):
        with pytest.raises(KLMSError):
            downlink.follow(Broadcast(2, honest, 1, (step,)).to_bytes(), held)


def peak_of(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bomb_snapshots(state):
    """Snapshots of a few hundred kilobytes at most that unpack to far more, or to what no model has."""
    theta = state.shared["theta"]
    side = [(f"shared.{name}", array) for name, array in state.shared.items() if name != "theta"]
    head = [("round", np.array(3)), *side]
    zeros = np.zeros(30_000_000, dtype=np.uint8)
    yield archive_of([*head, ("shared.theta", zeros)])
    lying = bytearray(archive_of([*head, ("shared.theta", zeros)]))
    place = lying.rindex(b"PK\x01\x02")
    lying[place + 24 : place + 28] = struct.pack("<I", 1000)  # the size that the directory says
    yield bytes(lying)
    yield archive_of([*head, ("shared.theta", zeros)], zipfile.ZIP_BZIP2)
    lying = bytearray(archive_of([*head, ("shared.theta", zeros)], zipfile.ZIP_BZIP2))
    place = lying.rindex(b"PK\x01\x02")
    lying[place + 24 : place + 28] = struct.pack("<I", 1000)
    yield bytes(lying)
    rows = np.zeros((1, 30_000), dtype=np.float32)  # a table of rows: 30 kB of indices would be 900 MB
    yield archive_of([*head, ("values.shared.theta", rows), ("indices.shared.theta", np.zeros(4000, dtype=np.uint8))])
    wide = np.zeros(1, dtype="S30000")
    yield archive_of([*head, ("values.shared.theta", wide), ("indices.shared.theta", np.zeros(4000, dtype=np.uint8))])
    claim = archive_of([*head, ("shared.theta", theta)], zipfile.ZIP_STORED)
    yield claim.replace(b"(%d,)" % theta.size, b"(9%s,)" % (b"9" * (len(str(theta.size)) - 1)))
    yield archive_of([*head, ("values.shared.theta", np.zeros(1))])
    yield archive_of([*head, ("indices.shared.theta", np.zeros(theta.size, dtype=np.uint8))])
    yield archive_of(
        [*head, ("values.shared.theta", np.zeros(1)), ("indices.shared.theta", np.ones(9, dtype=np.uint8))]
    )
    for odd in (theta[:-1], theta.astype(np.float64), theta.reshape(1, -1), np.zeros(theta.size, dtype="S4")):
        yield archive_of([*head, ("shared.theta", odd)])
    yield archive_of(head)  # no theta
    yield archive_of([("shared.theta", theta), *side])  # no round
    yield archive_of([("round", np.array([3, 3])), *side, ("shared.theta", theta)])
    yield archive_of([*head, ("shared.theta", theta), ("memories.0", theta)])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("round.npy", b"")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("round.npy", b"")
    yield buffer.getvalue()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("shared.theta", b"not an array")
    yield buffer.getvalue()
    yield b"\x93NUMPY" + archive_of([*head, ("shared.theta", theta)])
    yield bz2.compress(bytes(100))


def test_snapshots_that_unpack_to_more_or_to_something_else_are_refused_in_little_memory(small):
    downlink, held, sender, _ = small["auto"]
    for number, snapshot in enumerate(bomb_snapshots(held)):
        message = sealed(1, 3, 3, sender.digest, snapshot)

        def follow(message=message):
            with pytest.raises(CorruptMessage):
                downlink.follow(message, held)

        assert peak_of(follow) < 10e6, number


def test_side_information_that_unpacks_to_more_is_refused_in_little_memory(small):
    downlink, held, sender, _ = small["coded"]
    step = (sender.history.since(2) or (b"",))[0]
    (length,) = struct.unpack_from("<I", step)
    coded = step[4 + length :]
    held = replace(held, round=2)
    zeros = np.zeros(30_000_000, dtype=np.uint8)
    nested = zlib.compress(archive_of([("block_bounds", zeros)]))  # an archive of 30 MB within a few bytes
    alien = zlib.compress(archive_of([("alien", np.zeros(3))]))
    twice = zlib.compress(bytes(100)) + b"more"
    for side in (zlib.compress(zeros.tobytes()), nested, alien, twice, b"\0", zlib.compress(b"PK")[:-2], bytes(50)):
        forged = struct.pack("<I", len(side)) + side + coded
        message = Broadcast(3, sender.digest, 2, (forged,)).to_bytes()

        def follow(message=message):
            with pytest.raises(KLMSError):
                downlink.follow(message, held)

        assert peak_of(follow) < 10e6
    for forged in (b"", b"\0\0", struct.pack("<I", 2**32 - 1) + coded, struct.pack("<I", 5) + coded, coded[:9]):
        with pytest.raises(KLMSError):
            downlink.follow(Broadcast(3, sender.digest, 2, (forged,)).to_bytes(), held)


def test_a_snapshot_is_lossless_to_the_bit():
    """Also where few values make a table: with both zeros, which compare equal, and numbers that are none."""
    d = 5000
    values = np.array([0.0, -0.0, 0.25, -1.5, np.inf, np.nan, 1e-42], dtype=np.float32)
    few = values[np.arange(d) % values.size]
    many = np.random.default_rng(0).standard_normal(d).astype(np.float32)
    late = np.concatenate([np.zeros(4500, dtype=np.float32), many[:500]])  # few values at first, many in all
    shared = {"few": few, "many": many, "late": late, "counts": np.arange(d, dtype=np.uint16).reshape(2, -1)}
    shared["flag"] = np.array(True)
    state = State(7, shared, {"kept": few.astype(np.float64), "own": many})
    data = write_snapshot(state, frozenset({"own"}))
    back = read_snapshot(data, state)
    assert back.round == 7
    assert set(back.private) == {"kept"}
    assert arrays(back) == arrays(replace(state, private={"kept": state.private["kept"]}))
    assert digest_of(7, back.shared) == digest_of(7, shared)
    assert digest_of(8, back.shared) != digest_of(7, shared)
    assert len(write_snapshot(State(0, {"few": few}))) < d
    assert write_snapshot(state) == write_snapshot(state)


@pytest.mark.parametrize("mode", ["snapshot", "coded"])
def test_clients_that_take_no_step_of_the_server_s_do_not_get_what_it_keeps(mode):
    config, federation, results = run_of("fedpm-klms reset", downlink=mode)
    state = results[0].state
    assert state.private
    opened = Downlink(federation.method, config).open(state)
    assert not Downlink(federation.method, config).follow(opened.snapshot(), None).private
