"""The downlink of `Compressed`: clients keep the model of their last round, and get the coded difference to the next.

The server knows the model `w_hat` that clients hold, and sends `Q(w - w_hat)`, where `w` is what it wants them to have:
what the strategy inside returned, which was given `w_hat`, the model that clients start from. The error of a step is
not carried over: `Q` is unbiased, unless much of earlier errors comes back (`klms.engine.echo`) or few clients at few
bits leave too much noise (`klms.engine.step_length`). Step 1 starts from zeros, describes the arrays, and has more bits
than others.

Both sides also keep what the last step says of the next update, by which clients may order theirs (`history.py`).

A step holds the length of the description (u32), the description, the length of the head (u32), the head and the
message of the scheme; see `Model` for the head. A snapshot is a description and the bytes of all arrays, end to end.
"""

import json
import logging
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context

from klms.codec import SharedKey
from klms.compressors.base import Side
from klms.compressors.klms import KLMS, KLMSSettings
from klms.compressors.layout import Layout
from klms.engine.broadcast import SERVER, Broadcast, History, Sender, digest_of
from klms.engine.echo import Echo
from klms.engine.step_length import step_length
from klms.errors import CorruptMessage, InvalidArgument, OutOfSync
from klms.flower.history import history_for, history_of
from klms.flower.model import Array, Model, check_finite
from klms.flower.policy import CompressionPolicy
from klms.flower.records import read
from klms.numerics.checks import checked_shape

log = logging.getLogger("flwr")

DOWN = "klms.down"
"""Name of the record that takes the place of the arrays."""
HELLO = "klms.hello"
OUT_OF_SYNC = "klms.out-of-sync"

_HELD, _HELD_NUMBER, _HISTORY = "klms.model", "klms.model-number", "klms.history"  # in a node's context
_WORTH_CODING = 16384  # parameters: for less, headers would take the bits, and models would lag behind
_LENGTH = struct.Struct("<I")
_PARAMETERS_PER_BYTE = 1 << 18  # more than any step conveys, be it of zeros; what claims more gets no memory

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Steps:
    """What both sides agree on: how a step becomes a model."""

    seed: int
    small: int
    unchanged: frozenset[str]
    coarse: frozenset[str]
    before: int
    """Models of earlier servers with the same seed, at most: their keys are not used again."""
    threads: int | None = None

    def agreed(self) -> str:
        return json.dumps([self.small, sorted(self.unchanged), sorted(self.coarse), self.before])

    @classmethod
    def read(cls, seed: int, agreed: str, threads: int) -> "Steps":
        """Undo `agreed`."""
        try:
            small, unchanged, coarse, before = json.loads(agreed)
            names = frozenset(map(str, unchanged)), frozenset(map(str, coarse))
            return cls(seed, int(small), *names, int(before), threads)
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptMessage(f"the record of the downlink cannot be read: {error}") from error

    def key(self, number: int) -> SharedKey:
        return SharedKey(self.seed, self.before + number, SERVER)

    def model(self, arrays: Arrays) -> Model:
        return Model(arrays, self.small, self.unchanged, self.coarse)

    def taken(self, arrays: Arrays | None, number: int, step: bytes) -> dict[str, Array]:
        """Return the model that step `number` leads to, from the one before it; None before the first."""
        described, rest = _cut(step)
        head, message = _cut(rest)
        if arrays is None:
            arrays = _zeros(described, len(message))
        elif described:
            raise CorruptMessage("only the first step describes the arrays")
        model = self.model(arrays)
        dtypes, unchanged = model.read_head(head)
        if dtypes.keys() != model.arrays.keys():
            raise CorruptMessage("a step of the downlink leaves arrays out")
        change = np.zeros(0, dtype=np.float32)
        if model.layout.d:
            coder = KLMS(model.layout, threads=self.threads, agreed=False)
            decoded = coder.decode(message, {}, key=self.key(number))
            change = decoded.vector.astype(np.float32, copy=False)
        return model.apply(change, dtypes, unchanged)


@dataclass
class ModelDownlink:
    """The server's side: the model that clients hold, how to lead each of them to it, and who holds what."""

    policy: CompressionPolicy | None
    """How the next model is compressed; None if it goes out unchanged."""
    steps: Steps
    first: float
    """Bits per parameter of the first step, at least."""
    given: Mapping[str, FlowerArray] = field(default_factory=dict)
    """The arrays that the last step was made from."""
    echo: Echo = field(default_factory=Echo)
    up: Sequence[float] = ()
    """Bits per parameter of each of the updates that lead to the next model."""
    record: ArrayRecord | None = None
    """The model `w_hat` that clients hold after the last step."""
    history: History = field(default_factory=lambda: History(0))
    held: dict[int, int] = field(default_factory=dict)
    """Number of the model that each node holds, as far as the server knows; 0 for none."""
    sender: Sender | None = None
    last_step: Arrays = field(default_factory=dict)
    """What the last step says of the next update, by array; nothing before there was one."""

    def advance(self, wanted: ArrayRecord) -> ArrayRecord:
        """Return the model that clients will hold, one step closer to the wanted one unless that is still the same."""
        if self.record is not None and self._is_given(wanted):
            return self.record
        self.given = {}  # the memory of a model
        arrays = _numpy(wanted)
        base = None if self.record is None else _numpy(self.record)
        if base is not None and _description(base, shapes_only=True) != _description(arrays, shapes_only=True):
            base, self.held, self.echo = None, dict.fromkeys(self.held, 0), Echo()  # another model altogether
            self.history = History(0)
        number = self.history.number + 1
        size = sum(array.nbytes for array in arrays.values())
        if self.policy is None:
            reached, self.history, self.echo = arrays, History(number), Echo()
        else:
            step, reached = self._step(base, arrays, number)
            self.history = self.history.then(step, size)
        self.record = record = _record(reached)
        self.given = dict(wanted)
        self.last_step = {} if base is None else history_of(base, reached)
        described = len(_described(reached))
        self.sender = Sender(
            self.history, digest_of(number, reached), lambda: _snapshot(_numpy(record)), size, size + described
        )
        return record

    def _is_given(self, wanted: ArrayRecord) -> bool:
        """Return whether these are the arrays of the last step; the record may be one that a strategy fills anew."""
        same = all(array is self.given.get(name) for name, array in wanted.items())
        return same and self.given.keys() == wanted.keys()

    def _step(self, base: Arrays | None, arrays: Arrays, number: int) -> tuple[bytes, dict[str, Array]]:
        """Return the step from one model towards another, and where it leads."""
        described = b"" if base is not None else zlib.compress(_description(arrays))
        model = self.steps.model(base or _zeros(described, None))
        rng = np.random.default_rng([self.steps.seed, 0xD011, self.steps.before + number])
        head, message = model.write_head(arrays, rng), b""
        difference = model.difference(arrays)
        if model.layout.d:
            rate, length = self._rate(model), step_length(self.up, self._bits)
            if base is None:
                rate, length = max(rate, self.first), 1.0
            coder = KLMS(model.layout, rate, echo=self.echo.of(difference))
            message = coder.encode(np.float32(length) * difference, {}, key=self.steps.key(number), rng=rng)
        step = _LENGTH.pack(len(described)) + described + _LENGTH.pack(len(head)) + head + message
        reached = self.steps.taken(base, number, step)
        self.echo = self.echo.then(difference, model.difference(reached))
        return step, reached

    def expect(self, up: Sequence[float]) -> None:
        """Take note of the bits per parameter of the updates that will lead to the next model."""
        before, self.up = self.up, up
        length = 1.0 if self.policy is None else step_length(up, self._bits)
        if length < 1 and len(before) != len(up):
            log.info(
                "klms: for the noise of %d clients at so few bits, steps have %.2g of their length", len(up), length
            )

    @property
    def _bits(self) -> float:
        """Bits per parameter of the next step, with its headers."""
        assert self.policy is not None
        assert self.policy.bits is not None
        return self.policy.bits

    def _rate(self, model: Model) -> float:
        """Return the bits per parameter that headers leave for the message."""
        assert self.policy is not None
        settings = self.policy.for_model(model).settings
        assert isinstance(settings, KLMSSettings)
        return settings.rate

    def codes(self, arrays: Arrays) -> bool:
        """Return whether there is enough to code in these arrays, and nothing that klms cannot send."""
        model = self.steps.model(arrays)
        try:
            model.check(arrays)
        except InvalidArgument:
            return False
        assert self.policy is not None
        return model.layout.d >= _WORTH_CODING and isinstance(self.policy.for_model(model).settings, KLMSSettings)

    def message(self, node: int) -> bytes:
        """Return the broadcast for a node, or the snapshot if it turned out to hold another model."""
        assert self.sender is not None
        return self.sender.message(self.held.get(node))

    def reached(self, node: int) -> None:
        """Take note that a node holds the latest model."""
        self.held[node] = self.history.number


def receive(record: ConfigRecord, context: Context, threads: int) -> ArrayRecord:
    """Return the model that a broadcast leads this node to, and keep it in the node's context.

    Raise `OutOfSync` if it does not lead there from what the node holds.
    """
    data, chain, agreed = (record.get(name) for name in ("broadcast", "chain", "agreed"))
    if not isinstance(data, bytes) or type(chain) is not int or not isinstance(agreed, str):
        raise CorruptMessage("the record of the downlink lacks its broadcast, or does not say what it builds on")
    broadcast = Broadcast.from_bytes(data)
    steps = Steps.read(chain, agreed, threads)
    arrays: Arrays | None
    before: Arrays | None = None
    if broadcast.snapshot is not None:
        known, number, arrays = None, broadcast.number, _open_snapshot(broadcast.snapshot)
    else:
        known, arrays = _held(context, chain)
        number = known
        if not broadcast.base <= number <= broadcast.number:
            raise OutOfSync(f"the broadcast builds on model {broadcast.base}; this node holds {number}")
        try:
            for step in broadcast.steps[number - broadcast.base :]:
                number += 1
                before, arrays = arrays, steps.taken(arrays, number, step)
        except Exception as error:  # what the node held may be damaged in any way; a snapshot mends it
            raise OutOfSync(f"a step does not fit this node's model {number - 1}: {error}") from error
    if arrays is None or digest_of(number, arrays) != broadcast.digest:
        raise OutOfSync(f"this node's model {number} differs from the server's model {broadcast.number}")
    context.state[_HELD] = held = _record(arrays)
    context.state[_HELD_NUMBER] = ConfigRecord({"number": number, "chain": chain})
    if number != known:
        context.state[_HISTORY] = _record({} if before is None else history_of(before, arrays))
    return ArrayRecord(dict(held))  # whoever changes this record does not change what is held


def held_history(context: Context, layout: Layout) -> Side:
    """Return what this node knows of the last step, for an update with this layout."""
    kept = context.state.array_records.get(_HISTORY)
    try:
        return history_for(layout, {} if kept is None else _numpy(kept))
    except Exception:  # what the node held may be damaged in any way; it can do without
        return {}


def _held(context: Context, chain: int) -> tuple[int, Arrays | None]:
    """Return the model that this node holds, and its number; 0 if there is none, or if it is of another server."""
    kept, which = context.state.array_records.get(_HELD), context.state.config_records.get(_HELD_NUMBER)
    if kept is None or which is None or which.get("chain") != chain:
        return 0, None
    number = which.get("number")
    if not isinstance(number, int):
        return 0, None
    try:
        return number, _numpy(kept)
    except Exception:  # NumPy's reader raises almost any kind, depending on the damage
        return 0, None


def _record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: FlowerArray(array) for name, array in arrays.items()})


def _numpy(record: ArrayRecord) -> dict[str, Array]:
    return {name: read(array) for name, array in record.items()}


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """Return the part whose length stands before it, and the rest."""
    if len(data) < _LENGTH.size or len(data) - _LENGTH.size < (length := _LENGTH.unpack_from(data)[0]):
        raise CorruptMessage("the step is cut off")
    return data[_LENGTH.size : _LENGTH.size + length], data[_LENGTH.size + length :]


def _description(arrays: Arrays, *, shapes_only: bool = False) -> bytes:
    parts = [[name, "" if shapes_only else array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    return json.dumps(parts).encode()


def _shapes(description: bytes) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    try:
        found = json.loads(zlib.decompressobj().decompress(description, 1 << 24))
        return [(str(name), np.dtype(kind), checked_shape(shape)) for name, kind, shape in found]
    except (ValueError, TypeError, zlib.error, RecursionError) as error:
        raise CorruptMessage(f"the description of the arrays cannot be read: {error}") from error


def _zeros(description: bytes, message_bytes: int | None) -> dict[str, Array]:
    shapes = _shapes(description)
    parameters = sum(int(np.prod(shape, dtype=object)) for _, _, shape in shapes)
    if message_bytes is not None and parameters > _PARAMETERS_PER_BYTE * (message_bytes + 1024):
        raise CorruptMessage(f"{message_bytes} bytes cannot be the first step of {parameters} parameters")
    return {name: np.zeros(shape, dtype=kind) for name, kind, shape in shapes}


def _described(arrays: Arrays) -> bytes:
    """Return what a snapshot begins with: the length of the description, and that."""
    described = zlib.compress(_description(arrays))
    return _LENGTH.pack(len(described)) + described


def _snapshot(arrays: Arrays) -> bytes:
    return b"".join([_described(arrays), *(np.ascontiguousarray(array).data for array in arrays.values())])


def _open_snapshot(data: bytes) -> dict[str, Array]:
    described, rest = _cut(data)
    arrays: dict[str, Array] = {}
    place = 0
    for name, kind, shape in _shapes(described):
        size = kind.itemsize * int(np.prod(shape, dtype=object))
        if kind.hasobject or place + size > len(rest):
            raise CorruptMessage(f"the snapshot ends in {name}")
        arrays[name] = np.frombuffer(rest[place : place + size], dtype=kind).reshape(shape)
        place += size
    if place != len(rest):
        raise CorruptMessage("the snapshot has bytes after the arrays")
    check_finite(arrays)
    return arrays
