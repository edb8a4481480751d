"""The bytes of a state, which a checkpoint holds and a client keeps."""

from dataclasses import asdict

import numpy as np
import pytest

from klms.container import joined, read_arrays, write_arrays
from klms.errors import CorruptMessage
from klms.exchange.broadcast import Trail
from klms.exchange.held import Held
from klms.exchange.quality import Knowledge
from klms.methods.state import Learned, Sound, State

HELD = Held(None).to_arrays()


def written(meta: object, **groups: object) -> bytes:
    return write_arrays(joined({"held": HELD, "shared": {"theta": np.zeros(2)}, **groups}), meta)


def test_everything_of_a_state_comes_back():
    held = Held({"w": np.ones(3)}, Trail(5, (b"jump", b"5"), True), {"0": 4, "7": 5}, np.ones(3, np.float32))
    state = State(
        5,
        {"w": np.arange(3.0)},
        {"norm": np.array(2.5)},
        {3: {"residual": np.ones(4)}},
        held,
        Sound(0.5, {"w": np.zeros(3)}, {}),
        Learned(Knowledge(update=0.1, progress=0.3, step=1e-9, weights=7.0), 0.1),
        np.arange(3, dtype=np.float32),
    )
    back = State.from_bytes(state.to_bytes())
    assert back.to_bytes() == state.to_bytes()
    assert back.learned == state.learned
    assert back.last_step.tolist() == [0, 1, 2]
    assert (back.round, back.held.trail, back.held.by_client) == (5, held.trail, held.by_client)
    assert (back.sound.loss, back.sound.shared["w"].tolist()) == (0.5, [0, 0, 0])
    assert back.clients[3]["residual"].tolist() == [1] * 4
    assert back.shared["w"].flags.writeable
    first = State.from_bytes(State(0).to_bytes())
    assert (first.held.state, first.held.number, first.sound) == (None, 0, None)


@pytest.mark.parametrize("number", [-1, 1.5, [1, 2], None, True])
def test_the_round_of_a_state_is_a_whole_number(number):
    assert State.from_bytes(written({"round": 1, "loss": None})).round == 1
    with pytest.raises(CorruptMessage, match="not a state"):
        State.from_bytes(written({"round": number, "loss": None}))


@pytest.mark.parametrize("meta", [None, [], {}, {"round": 1}, {"round": 1, "loss": "x"}])
def test_a_state_has_known_numbers(meta):
    with pytest.raises(CorruptMessage, match="not a state"):
        State.from_bytes(written(meta))


KNOWN = asdict(Learned())


@pytest.mark.parametrize(
    "learned",
    [
        None,
        [],
        {},
        {**KNOWN, "down": "1"},
        {**KNOWN, "down": float("nan")},
        {**KNOWN, "known": None},
        {**KNOWN, "known": {**KNOWN["known"], "weights": -1.0}},
        {**KNOWN, "known": {**KNOWN["known"], "uplink": None}},
        {**KNOWN, "known": {**KNOWN["known"], "gain": {"total": 1.0, "other": 2.0}}},
    ],
)
def test_what_was_learned_is_numbers(learned):
    assert State.from_bytes(written({"round": 1, "loss": None, "learned": KNOWN})).learned == Learned()
    with pytest.raises(CorruptMessage):
        State.from_bytes(written({"round": 1, "loss": None, "learned": learned}))


@pytest.mark.parametrize("group", ["elsewhere", "clients"])
def test_a_state_has_known_parts(group):
    with pytest.raises(CorruptMessage):
        State.from_bytes(written({"round": 1, "loss": None}, **{group: {"one": np.zeros(2)}}))


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("steps", np.zeros(3, np.uint8)),
        ("clients", np.frombuffer(b"[1]", np.uint8)),
        ("clients", np.frombuffer(b'{"a": []}', np.uint8)),
        ("clients", np.frombuffer(b'{"a": 1e999}', np.uint8)),
        ("clients", np.frombuffer(b"{" * 100_000, np.uint8)),
        ("error", np.array([np.nan])),
        ("error", None),
    ],
)
def test_what_clients_hold_is_not_taken_on_trust(name, array):
    held = {key: value for key, value in {**HELD, name: array}.items() if value is not None}
    with pytest.raises(CorruptMessage):
        State.from_bytes(written({"round": 1, "loss": None}, held=held))


def test_a_state_is_never_larger_than_its_bytes():
    arrays, meta = read_arrays(State(1, {"theta": np.zeros(1 << 20)}).to_bytes())
    with pytest.raises(CorruptMessage, match="take more than"):
        State.from_bytes(write_arrays(arrays, meta, packed=True))
