"""How a step leads clients of our methods from one state to the next: the rules that the exchange is given.

A relayed step is the messages of a round: for each, in the order in which they were added up, client (u32), length
(u32) and bytes. All parties share the keys, so everybody decodes them and computes the same next state.

A coded step is the length of the side information that changed (u32), that, deflated (`klms.exchange.arrays`), and a
message of the dense scheme for the difference between the state `w_hat` that clients hold and the server's own `w`. Its
error is not carried over, since the next round starts from `w_hat`.
"""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from klms.codec import SharedKey
from klms.compressors.trellis import Trellis
from klms.engine.snapshot import most_bytes, read_snapshot, write_snapshot
from klms.errors import CorruptMessage
from klms.exchange.arrays import read_arrays, write_arrays
from klms.exchange.broadcast import SERVER
from klms.exchange.frame import digest_of
from klms.methods.base import Method
from klms.methods.entry import RunSettings
from klms.methods.state import Arrays, State

_RELAYED = struct.Struct("<II")
_SIDE = struct.Struct("<I")


@dataclass(frozen=True)
class Steps:
    """What states of a method are, whatever leads from one to the next. It is a `Rule` once it can `take` a step."""

    method: Method
    settings: RunSettings

    def anchor(self) -> State:
        return self.method.init()

    def write(self, state: State) -> bytes:
        # Only clients that take the server's step themselves need what it keeps.
        relayed = self.settings.downlink == "auto"
        return write_snapshot(state, self.method.server_only if relayed else frozenset(state.private))

    def read(self, snapshot: bytes, number: int) -> State:
        state = read_snapshot(snapshot, self.method.init())
        if state.round != number:
            raise CorruptMessage(f"the snapshot is of state {state.round}, not of state {number}")
        return state

    def digest(self, state: State, number: int) -> bytes:
        return digest_of(number, state.shared)

    def nbytes(self, state: State) -> int:
        return sum(array.nbytes for array in state.shared.values())


class RelayedSteps(Steps):
    """Steps that are the messages of a round."""

    def take(self, state: State, number: int, step: bytes) -> State:
        received = self.method.receive(state)
        for client, message in relayed(step):
            received.add(self.method.decode(state, client, message), len(message))
        return self.method.conclude(state, received).state if received.count else state.after(state.shared)


class CodedSteps(Steps):
    """Steps that are coded differences of one array; the others are side information."""

    @property
    def name(self) -> str:
        """Name of the array that is coded."""
        return str(self.method.vector_name)

    def difference(self, base: State, wanted: State) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return wanted.vector(self.name) - base.vector(self.name)

    def code(
        self, base: State, wanted: State, number: int, rate: float, echo: float = 1.0, length: float = 1.0
    ) -> bytes:
        """Return a step of this share of the way from the base to the wanted state."""
        coder = Trellis(self.method.layout, rate, echo=echo)
        rng = np.random.default_rng([self.settings.seed, 0xD011, number])
        side = {name: array for name, array in wanted.shared.items() if name != self.name}
        packed = _pack({name: array for name, array in side.items() if not np.array_equal(array, base.shared[name])})
        difference = np.float32(length) * self.difference(base, wanted)
        message = coder.encode(difference, {}, key=self._key(number), rng=rng)
        return _SIDE.pack(len(packed)) + packed + message

    def take(self, state: State, number: int, step: bytes) -> State:
        if len(step) < _SIDE.size:
            raise CorruptMessage("the step is cut off")
        end = _SIDE.size + _SIDE.unpack_from(step)[0]
        decoded = Trellis(self.method.layout, agreed=False).decode(step[end:], {}, key=self._key(number))
        vector = self.method.feasible(state.vector(self.name) + decoded.vector.astype(np.float32, copy=False))
        side = _unpack(step[_SIDE.size : end], most_bytes([vector]))
        if not side.keys() <= state.shared.keys():
            raise CorruptMessage("the step has side information that the method does not know")
        return replace(state, round=number, shared={**state.shared, **side, self.name: vector})

    def distance(self, state: State, wanted: State) -> float:
        difference = self.difference(state, wanted)
        return float(np.dot(difference, difference))

    def parameters(self, wanted: State) -> int:
        return self.method.layout.d

    def _key(self, number: int) -> SharedKey:
        return SharedKey(self.settings.seed, number, SERVER)


def write_relayed(client: int, message: bytes) -> list[bytes]:
    """Return what stands for a message in a relayed step."""
    return [_RELAYED.pack(client, len(message)), message]


def relayed(step: bytes) -> Iterable[tuple[int, bytes]]:
    """Yield the messages of a relayed step and whose they are."""
    place = 0
    while place < len(step):
        if len(step) - place < _RELAYED.size:
            raise CorruptMessage("the relayed messages are cut off")
        client, length = _RELAYED.unpack_from(step, place)
        place += _RELAYED.size
        yield client, step[place : place + length]
        place += length


def _pack(arrays: Arrays) -> bytes:
    return zlib.compress(write_arrays(arrays)) if arrays else b""


def _unpack(data: bytes, limit: int) -> Arrays:
    if not data:
        return {}
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(data, limit)
    except zlib.error as error:
        raise CorruptMessage(f"the side information of the step cannot be read: {error}") from error
    if not unpacker.eof:
        raise CorruptMessage("the side information of the step is cut off, or larger than the model's can be")
    return read_arrays(unpacked)[0]
