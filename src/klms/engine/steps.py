"""The exchange's rules for klms's own methods: how a step leads clients from one state to the next.

A relayed step consists of the messages of a round: for each message, in the order in which they were added up, the
client (u32), the length (u32) and the bytes. All parties share the keys, so every client decodes the messages and
computes the same next state.

A coded step consists of a packed container of the side information that changed, preceded by its length (u32), and of a
message of the dense scheme for the difference between the state `w_hat` that clients hold and the server's own `w`. The
error of the step is not carried over, since the next round starts from the new `w_hat`.

If the server chooses the rates of a run, both kinds of step begin with the rate of the next updates (f32).

A snapshot is a packed container of the shared arrays, and of the private arrays that clients need to take the server's
step.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from klms.codec import SharedKey
from klms.compressors.base import Vector
from klms.compressors.trellis import MAX_RATE, MIN_RATE, ChunkedTrellis, Trellis
from klms.container import Array, Arrays, grouped, joined, read_arrays, write_arrays
from klms.errors import CorruptMessage
from klms.exchange.broadcast import SERVER
from klms.exchange.held import echo_in
from klms.frame import digest_of
from klms.methods.base import Method
from klms.methods.entry import RunSettings
from klms.methods.state import RATE, State, rate_array

_RELAYED = struct.Struct("<II")
_SIDE = struct.Struct("<I")
_RATE = struct.Struct("<f")
_SPARE_BYTES = 1 << 16


@dataclass(frozen=True)
class MethodRule:
    """The part of a `Rule` that does not depend on the kind of step; subclasses add `take`."""

    method: Method
    settings: RunSettings

    def anchor(self) -> State:
        return self.method.init()

    def write(self, state: State) -> bytes:
        # Only clients that take the server's step themselves need the server's private arrays.
        left_out = self.method.server_only if self.settings.downlink == "auto" else state.private.keys()
        private = {name: array for name, array in state.private.items() if name not in left_out}
        return write_arrays(joined({"shared": state.shared, "private": private}), packed=True)

    def read(self, snapshot: bytes, number: int) -> State:
        like = self.method.init()
        arrays, _ = read_arrays(snapshot, _most_bytes([*like.shared.values(), *like.private.values()]))
        groups = grouped(arrays, ("shared", "private"))
        for name, array in like.shared.items():
            found = groups["shared"].get(name)
            # Side information may change its shape, parameters may not.
            if found is None or (array.dtype.kind == "f" and (found.dtype, found.shape) != (array.dtype, array.shape)):
                raise CorruptMessage(f"the snapshot is not of this model: {name} is missing, or has another shape")
        return State(number, groups["shared"], groups["private"])

    def digest(self, state: State, number: int) -> bytes:
        return digest_of(number, state.shared)

    def nbytes(self, state: State) -> int:
        return sum(array.nbytes for array in state.shared.values())

    def head(self, state: State) -> bytes:
        """Return the head of a step to this state: the rate of the next updates, if the server chooses it."""
        return _RATE.pack(state.rate) if self.settings.quality else b""

    def behead(self, step: bytes) -> tuple[Arrays, bytes]:
        """Return the shared arrays in the head of a step, and the step without its head."""
        if not self.settings.quality:
            return {}, step
        if len(step) < _RATE.size:
            raise CorruptMessage("the step is cut off")
        (rate,) = _RATE.unpack_from(step)
        if not MIN_RATE <= rate <= MAX_RATE:
            raise CorruptMessage(f"updates cannot have {rate:g} bits per parameter")
        return {RATE: rate_array(rate)}, step[_RATE.size :]


class RelayedSteps(MethodRule):
    """The rule whose steps are the messages of a round."""

    def take(self, state: State, number: int, step: bytes) -> State:
        head, step = self.behead(step)
        received = self.method.receive(state)
        for client, message in relayed(step):
            received.add(self.method.decode(state, client, message), len(message), self.method.weight(0))
        after = self.method.conclude(state, received).state if received.count else state.after(state.shared)
        return replace(after, shared={**after.shared, **head}) if head else after


class CodedSteps(MethodRule):
    """The rule whose steps are coded differences of one array; the other arrays are side information."""

    @property
    def name(self) -> str:
        """Name of the array that is coded."""
        return str(self.method.vector_name)

    def difference(self, base: State, wanted: State) -> Vector:
        return wanted.vector(self.name) - base.vector(self.name)

    def code(self, base: State, wanted: State, number: int, rate: float, echo: float = 1.0) -> bytes:
        changed = {
            name: array
            for name, array in wanted.shared.items()
            if name not in (self.name, RATE) and not np.array_equal(array, base.shared[name])
        }
        side = write_arrays(changed, packed=True) if changed else b""
        rng = np.random.default_rng([self.settings.seed, 0xD011, number])
        difference = self.difference(base, wanted)
        coder = ChunkedTrellis(Trellis(self.method.layout, rate, echo=echo))
        message = coder.encode(difference, {}, key=self._key(number), rng=rng)
        return self.head(wanted) + _SIDE.pack(len(side)) + side + message

    def echo(self, difference: Vector, error: Vector) -> float:
        return 1.0 if self.method.noisy_steps else echo_in(difference, error)

    def take(self, state: State, number: int, step: bytes) -> State:
        head, step = self.behead(step)
        if len(step) < _SIDE.size:
            raise CorruptMessage("the step is cut off")
        end = _SIDE.size + _SIDE.unpack_from(step)[0]
        coder = ChunkedTrellis(Trellis(self.method.layout, agreed=False))
        decoded = coder.decode(step[end:], {}, key=self._key(number))
        vector = self.method.feasible(state.vector(self.name) + decoded.vector.astype(np.float32, copy=False))
        side = read_arrays(step[_SIDE.size : end], _most_bytes([vector]))[0] if end > _SIDE.size else {}
        if not side.keys() <= state.shared.keys():
            raise CorruptMessage("the step has side information that the method does not know")
        return replace(state, round=number, shared={**state.shared, **side, **head, self.name: vector})

    def _key(self, number: int) -> SharedKey:
        return SharedKey(self.settings.seed, number, SERVER)


def write_relayed(client: int, message: bytes) -> bytes:
    """Return a message as a part of a relayed step: client, length, bytes."""
    return _RELAYED.pack(client, len(message)) + message


def relayed(step: bytes) -> Iterable[tuple[int, bytes]]:
    """Yield the clients and the messages of a relayed step."""
    place = 0
    while place < len(step):
        if len(step) - place < _RELAYED.size:
            raise CorruptMessage("the relayed messages are cut off")
        client, length = _RELAYED.unpack_from(step, place)
        place += _RELAYED.size
        yield client, step[place : place + length]
        place += length


def _most_bytes(arrays: Iterable[Array]) -> int:
    """Return the maximum size of arrays like these when unpacked; block maps may have grown since the first round."""
    return 4 * sum(array.nbytes for array in arrays) + _SPARE_BYTES
