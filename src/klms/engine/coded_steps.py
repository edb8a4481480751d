"""Coded differences: how the server leads clients from the state `w_hat` that they hold towards its own state `w`.

A step codes `w - w_hat` at `down_rate` bits per parameter. Its error is not carried over, since the next round starts
from `w_hat`: it is unbiased, unless much of earlier errors comes back (`echo.py`), as after a round that was undone.

Clients that come once in many rounds would need many steps. So the server also tries a jump: the difference to the
anchor, which is the first state, at as many bits as it takes to come as close to `w` as a step brings draws of a normal
distribution. Whichever costs the clients of the round fewer bytes in all decides what `w_hat` becomes; everybody who
comes later is led through it.

A step is the length of the side information that changed (u32), that (a deflated NumPy archive), and a message of the
dense scheme; a jump is the same, relative to the anchor.
"""

import io
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from klms.codec import SharedKey
from klms.compressors.history import HISTORY
from klms.compressors.klms import KLMS
from klms.compressors.piece_rates import MAX_RATE, MIN_RATE
from klms.engine.snapshot import most_bytes
from klms.errors import CorruptMessage
from klms.exchange.broadcast import SERVER, Trail
from klms.exchange.echo import Echo
from klms.exchange.step_length import step_length
from klms.methods.base import Method
from klms.methods.entry import RunSettings
from klms.methods.state import Arrays, State
from klms.numerics.archive import read_arrays

_SIDE = struct.Struct("<I")
_SHARES = 0.4, 0.6  # of the bits that a normal distribution would take: the least to hope for, and a first guess
_NEARER, _FARTHER = 0.9, 1.05  # squared error of a jump, relative to the wanted one
_TINY = 1e-9
_WORTH = 0.9  # bytes of a jump relative to those of steps, at most: steps often come closer


@dataclass(frozen=True)
class CodedSteps:
    """The steps of a run, as both sides take them."""

    method: Method
    settings: RunSettings

    @property
    def name(self) -> str:
        """Name of the array that is coded; the others are side information."""
        return str(self.method.vector_name)

    def rate(self, number: int) -> float:
        """Return the bits per parameter of the step to state `number`, which the round after it starts from."""
        return self.settings.down_rate_in(number + 1, self.method.layout.d)

    def lead(
        self, state: State, view: Arrays, history: Trail, coming: Sequence[int], echo: Echo
    ) -> tuple[Trail, Arrays]:
        """Return the history with a step or a jump towards `state`, and what clients hold after it.

        `view` is what they hold before it, and `coming` are the numbers of the states that those of this round hold.
        `echo` knows the errors of earlier steps.
        """
        size = sum(array.nbytes for array in state.shared.values())
        difference = state.vector(self.name) - np.asarray(view[self.name], dtype=np.float32)
        share, length = (1.0, 1.0) if self.method.noisy_steps else (echo.of(difference), self._length(state.round))
        step, reached = self._coded(state, view, self.rate(state.round), share, length)
        stepped = history.then(step, size)
        if all(held == history.number for held in coming):  # nobody lacks more than this step
            return stepped, reached
        paths = [stepped.size_since(held) for held in coming]
        cost = sum(size if path is None else min(size, path) for path in paths)
        jump = self._jump(state, view, _WORTH * cost / len(coming))
        return (stepped, reached) if jump is None else (history.jump(jump[0]), jump[1])

    def _length(self, number: int) -> float:
        """Return the share of the difference to state `number` that a step covers."""
        up = self.settings.up_rate_in(number, self.method.layout.d)
        return step_length([math.inf if up is None else up] * self.settings.participants, self.rate(number))

    def _jump(self, state: State, view: Arrays, most: float) -> tuple[bytes, Arrays] | None:
        """Return a jump that comes as close to `state` as a step from `view` of least error should, and where it leads.

        Return None if that takes more than `most` bytes.
        """
        anchor = self.method.init().shared
        far, before = (self._error(state, arrays) for arrays in (anchor, view))
        near = before / 4 ** self.rate(state.round)
        if state.round < 2 or not 0 < near < far:  # a jump to state 1 would be the step
            return None
        bits = _bits(far, near)
        if _SHARES[0] * bits * self.method.layout.d / 8 > most:
            return None
        rate = _SHARES[1] * bits
        jump, landed = self._coded(state, anchor, rate, echo=1.0)
        found = max(self._error(state, landed), _TINY * near)
        if not _NEARER < found / near < _FARTHER:
            lacking = _bits(found, near)
            if lacking < 0:  # fewer than that may be taken off: the first bits gain more than the last ones
                lacking *= rate / (bits - lacking)
            jump, landed = self._coded(state, anchor, rate + lacking, echo=1.0)
        fits = len(jump) <= most and self._error(state, landed) < _FARTHER * near
        return (jump, landed) if fits else None

    def taken(self, held: Arrays, number: int, step: bytes) -> Arrays:
        """Return the shared arrays of state `number`, from those that its step or jump builds on."""
        if len(step) < _SIDE.size:
            raise CorruptMessage("the step is cut off")
        end = _SIDE.size + _SIDE.unpack_from(step)[0]
        decoded = KLMS(self.method.layout, agreed=False).decode(step[end:], {}, key=self._key(number))
        change = decoded.vector.astype(np.float32, copy=False)
        vector = self.method.feasible(np.asarray(held[self.name], dtype=np.float32) + change)
        side = _unpack(step[_SIDE.size : end], most_bytes([vector]))
        if not side.keys() <= held.keys():
            raise CorruptMessage("the step has side information that the method does not know")
        return {**held, **side, **self.method.history(change), self.name: vector}

    def _coded(self, state: State, base: Arrays, rate: float, echo: float, length: float = 1.0) -> tuple[bytes, Arrays]:
        """Return the step from `base` towards `state`, of this share of its length, and where it leads."""
        coder = KLMS(self.method.layout, min(max(rate, MIN_RATE), MAX_RATE), echo=echo)
        rng = np.random.default_rng([self.settings.seed, 0xD011, state.round])
        side = {name: array for name, array in state.shared.items() if name not in (self.name, HISTORY)}
        packed = _pack({name: array for name, array in side.items() if not np.array_equal(array, base[name])})
        difference = state.vector(self.name) - np.asarray(base[self.name], dtype=np.float32)
        message = coder.encode(np.float32(length) * difference, {}, key=self._key(state.round), rng=rng)
        step = _SIDE.pack(len(packed)) + packed + message
        return step, self.taken(base, state.round, step)

    def _key(self, number: int) -> SharedKey:
        return SharedKey(self.settings.seed, number, SERVER)

    def _error(self, state: State, reached: Arrays) -> float:
        error = state.vector(self.name) - np.asarray(reached[self.name], dtype=np.float32)
        return float(np.dot(error, error))


def _bits(error: float, wanted: float) -> float:
    """Return the bits per parameter that bring an error to the wanted one, where each divides it by 4."""
    return math.log2(error / wanted) / 2


def _pack(arrays: Arrays) -> bytes:
    if not arrays:
        return b""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(arrays))
    return zlib.compress(buffer.getvalue())


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
    return read_arrays(io.BytesIO(unpacked), limit)
