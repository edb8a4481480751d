"""Coded steps of a model of named arrays: how a client gets from the model that it holds to the next one.

A step holds the length of a description (u32), the description (`container.py`), the length of the head (u32), the head
(`model.py`), and the message of the dense scheme. The description is empty unless the step starts from nothing. In a
step from nothing, every array is first divided by its norm. The norm is rounded to a power of the sixteenth root of 2,
and the exponent is stored with the description. The output of a layer has the same relative error as the layer's
weights, however many weights there are, so the squares of the arrays' relative errors add up. Dividing by the norms
minimises this sum for the bits spent: small arrays become almost exact at almost no cost. A snapshot is a container of
all arrays.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from klms.codec import SharedKey
from klms.compressors.base import Vector
from klms.compressors.trellis import ChunkedTrellis, Trellis
from klms.container import Array, Arrays, Description, describe, read_arrays, read_description, write_arrays
from klms.errors import CorruptMessage
from klms.exchange.broadcast import SERVER
from klms.exchange.held import echo_in
from klms.exchange.model import Model
from klms.frame import digest_of

_LENGTH = struct.Struct("<I")
_PARAMETERS_PER_BYTE = 1 << 18  # more than any step can hold, even a step of zeros; no memory is allocated beyond that
_SPARE_BYTES = 1024
_ROOT = 16
_POWERS = [np.float32(2 ** (n / _ROOT)) for n in range(_ROOT)]
_MOST = 120 * _ROOT  # largest exponent of an array's norm, within the range of float32


@dataclass(frozen=True)
class ModelSteps:
    """The `CodedRule` for dictionaries of arrays; both sides have the same one. The anchor is an empty dictionary."""

    seed: int
    unchanged: frozenset[str]
    coarse: frozenset[str]
    before: int
    """At least the number of models that earlier servers with the same seed have sent. Keys are numbered from here on,
    so the keys of those models are not used again."""
    threads: int | None = None

    def agreed(self) -> list[object]:
        """Return the values that clients must know, ready for JSON."""
        return [self.seed, sorted(self.unchanged), sorted(self.coarse), self.before]

    @classmethod
    def read_agreed(cls, agreed: Any, threads: int | None) -> "ModelSteps":
        """Undo `agreed`."""
        try:
            seed, unchanged, coarse, before = agreed
            exact, rough = frozenset(map(str, unchanged)), frozenset(map(str, coarse))
            return cls(int(seed), exact, rough, int(before), threads)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise CorruptMessage(f"the request does not say how its steps are coded: {error}") from error

    def key(self, number: int) -> SharedKey:
        return SharedKey(self.seed, self.before + number, SERVER)

    def rng(self, number: int) -> np.random.Generator:
        """Return the server's randomness for a step; the clients do not need it."""
        return np.random.default_rng([self.seed, 0xD011, self.before + number])

    def model(self, arrays: Arrays) -> Model:
        return Model(arrays, self.unchanged, self.coarse)

    def anchor(self) -> dict[str, Array]:
        return {}

    def difference(self, base: Arrays, wanted: Arrays) -> Vector:
        return self.model(base or _zeros(wanted)).difference(wanted)

    def code(self, base: Arrays, wanted: Arrays, number: int, rate: float, echo: float = 1.0) -> bytes:
        """Return a step from the base to the wanted arrays."""
        model = self.model(base or _zeros(wanted))
        rng = self.rng(number)
        head = model.write_head(wanted, rng)
        difference = model.difference(wanted)
        described = b""
        if not base:
            exponents = [_exponent(part) for _, part in model.layout.split(difference)]
            described = describe(wanted, exponents)
            _shift(model, difference, [-exponent for exponent in exponents])
        message = b""
        if model.layout.d:
            coder = ChunkedTrellis(Trellis(model.layout, rate, echo=echo, threads=self.threads))
            message = coder.encode(difference, {}, key=self.key(number), rng=rng)
        return b"".join([_LENGTH.pack(len(described)), described, _LENGTH.pack(len(head)), head, message])

    def echo(self, difference: Vector, error: Vector) -> float:
        return echo_in(difference, error)

    def take(self, state: Arrays, number: int, step: bytes) -> dict[str, Array]:
        described, rest = _cut(step)
        head, message = _cut(rest)
        if bool(described) == bool(state):
            raise CorruptMessage("a step describes the arrays if, and only if, it starts from nothing")
        description = read_description(described) if described else None
        model = self.model(state if description is None else _zeros_of(description, len(described), len(message)))
        dtypes, exact = model.read_head(head, trusted=True)
        if dtypes.keys() != model.arrays.keys():
            raise CorruptMessage("a step of the model leaves arrays out")
        change = np.zeros(0, dtype=np.float32)
        if model.layout.d:
            coder = ChunkedTrellis(Trellis(model.layout, threads=self.threads, agreed=False))
            decoded = coder.decode(message, {}, key=self.key(number))
            change = decoded.vector.astype(np.float32, copy=False)
        if description is not None:
            _shift(model, change, description.meta)
        return model.apply(change, dtypes, exact)

    def write(self, state: Arrays) -> bytes:
        return write_arrays(state)

    def read(self, snapshot: bytes, number: int) -> dict[str, Array]:
        arrays, _ = read_arrays(snapshot)
        return arrays

    def digest(self, state: Arrays, number: int) -> bytes:
        return digest_of(number, state)

    def nbytes(self, state: Arrays) -> int:
        return sum(array.nbytes for array in state.values())


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """Return the part that is preceded by its length, and the rest."""
    if len(data) < _LENGTH.size or len(data) - _LENGTH.size < (length := _LENGTH.unpack_from(data)[0]):
        raise CorruptMessage("the step is cut off")
    return data[_LENGTH.size : _LENGTH.size + length], data[_LENGTH.size + length :]


def _zeros(arrays: Arrays) -> dict[str, Array]:
    return {name: np.zeros(array.shape, dtype=array.dtype) for name, array in arrays.items()}


def _zeros_of(description: Description, length: int, message_bytes: int) -> Mapping[str, Array]:
    """Return zeros of the described shapes; raise an error if the message is too short for that many parameters."""
    parameters = sum(one.entries for one in description.arrays)
    if description.end != length or parameters > _PARAMETERS_PER_BYTE * (message_bytes + _SPARE_BYTES):
        raise CorruptMessage(f"{message_bytes} bytes cannot be a step to {parameters} parameters")
    return {one.name: np.zeros(one.shape, dtype=one.dtype) for one in description.arrays}


def _exponent(entries: Vector) -> int:
    """Return the exponent of the power of 2^(1/16) that is closest to the norm of these entries."""
    square = float(np.dot(entries.reshape(-1), entries.reshape(-1)))
    return min(_MOST, max(-_MOST, round(_ROOT * math.log2(square) / 2))) if 0 < square < math.inf else 0


def _shift(model: Model, vector: Vector, exponents: Any) -> None:
    """Multiply every coded array by 2^(1/16) to the power of its exponent."""
    parts = list(model.layout.split(vector))
    if not isinstance(exponents, list) or [type(one) for one in exponents] != [int] * len(parts):
        raise CorruptMessage("the step does not have one exponent for each array")
    if any(abs(exponent) > _MOST for exponent in exponents):
        raise CorruptMessage("an exponent of the step is out of range")
    for (_, part), exponent in zip(parts, exponents, strict=True):
        part *= np.ldexp(_POWERS[exponent % _ROOT], exponent // _ROOT)
