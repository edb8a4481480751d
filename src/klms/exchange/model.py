"""A model, a dictionary of arrays, and the bytes of an update of it.

The differences of all floating-point arrays are compressed together, as one vector. Sent unchanged are integers,
booleans, and arrays of at most one dimension and `SMALL` entries: biases, the parameters and running statistics of
normalisation layers, and counters. They are a small part of a model, and some do not tolerate noise: a variance must
not become negative. At low rates they would be most of the payload; then those that have a negative entry join the
vector, and the others (variances, scales) are sent coarsely, by differences of 8 bits.

The head of a payload holds the dtype of every array (one byte each, 0 for an array that the client did not return)
and, end to end, the arrays that are not in the vector: unchanged, or as a step (f32) and a number of steps for each
entry (i8).
"""

import math
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from klms.compressors.base import Vector
from klms.compressors.layout import Layout
from klms.container import DTYPES, Array
from klms.errors import CorruptMessage, InvalidArgument, TrainingDiverged

SMALL = 4096
_LARGEST_SHARE = 0.1  # of the payload that arrays in the head may take before some join the vector
_AT_ONCE = 1 << 20  # entries of a sum, so that no copy of a whole array is made
_MOST_STEPS = 127
_STEP = struct.Struct("<f")

DTypes = dict[str, np.dtype[Any]]
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_ABSENT = 0


@dataclass(frozen=True)
class Model:
    """The arrays that the server sent, to which an update is the difference. Their order is that of the vector."""

    arrays: Mapping[str, Array]
    small: int = SMALL
    sent_unchanged: frozenset[str] = frozenset()
    """Further arrays that are not compressed: integers that a strategy's average turned into floating-point numbers."""
    coarse: frozenset[str] = frozenset()
    """Arrays that are sent by differences of 8 bits."""

    @classmethod
    def for_bits(
        cls,
        arrays: Mapping[str, Array],
        small: int,
        integers: frozenset[str],
        bits: float | None,
        *,
        signed: bool = False,
    ) -> Self:
        """Return the model with its small arrays sent so that they leave room for the others at this rate.

        Arrays that are `signed` may have negative entries whatever these have, as differences do. With `small=0` all
        arrays are compressed, but for statistics that training does not mend.
        """
        if small == 0:
            return cls(arrays, 0, integers, statistics_of(arrays) - integers)
        model = cls(arrays, small, integers)
        if bits is None or 8 * model.head_bytes <= _LARGEST_SHARE * bits * model.size:
            return model
        if signed:
            return cls(arrays, 0, integers)
        floating = {name for name, array in arrays.items() if array.dtype.kind == "f"} - integers - model._compressed
        coarse = frozenset(
            name for name in floating if arrays[name].size and arrays[name].min() >= 0 < arrays[name].max()
        )
        return cls(arrays, 0, integers, coarse)

    @cached_property
    def layout(self) -> Layout:
        """Layout of the arrays that are compressed."""
        left_out = self.sent_unchanged | self.coarse
        floating = {n: a for n, a in self.arrays.items() if a.dtype.kind == "f" and n not in left_out}
        shapes = {n: a.shape for n, a in floating.items() if a.size > (0 if a.ndim > 1 else self.small)}
        return Layout(tuple(shapes), tuple(shapes.values()))

    @property
    def size(self) -> int:
        """Number of entries of all arrays, by which bits per parameter are counted."""
        return sum(array.size for array in self.arrays.values())

    @property
    def head_bytes(self) -> int:
        """Length of the head if clients train in float32 at most, though a strategy may send them float64."""
        unchanged = [array for name, array in self.arrays.items() if name not in self._compressed | self.coarse]
        coarse = sum(_STEP.size + self.arrays[name].size for name in self.coarse)
        sizes = (a.size * min(a.itemsize, 4 if a.dtype.kind == "f" else 8) for a in unchanged)
        return len(self.arrays) + coarse + sum(sizes)

    def parts(self) -> Iterator[bytes | memoryview]:
        """Yield the whole model, for a fingerprint."""
        for name, array in self.arrays.items():
            yield f"{name}|{array.dtype.str}|{array.shape}|".encode()
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def only(self, names: Collection[str]) -> Self:
        """Return the part of the model that has these names."""
        if len(names) == len(self.arrays):
            return self
        return replace(self, arrays={name: array for name, array in self.arrays.items() if name in names})

    def check(self, trained: Mapping[str, Array]) -> None:
        """Raise an error unless these are arrays of the model, all or some, with types that klms can send."""
        for name, array in trained.items():
            if array.shape != self.arrays[name].shape:
                raise InvalidArgument(f"{name} was received as {self.arrays[name].shape}; the reply has {array.shape}")
            if array.dtype not in _NUMBERS:
                raise InvalidArgument(f"{name} has dtype {array.dtype}, which klms does not send")
            if name in self._compressed | self.coarse and array.dtype.kind != "f":
                raise InvalidArgument(f"{name} was received as floating-point numbers; the reply has {array.dtype}")

    def difference(self, trained: Mapping[str, Array]) -> Vector:
        """Return what training changed in the compressed arrays. `trained` has all of them, and has passed `check`."""
        update = np.empty(self.layout.d, dtype=np.float32)
        for name, change in self.layout.split(update):
            change[...] = trained[name] - self.arrays[name]
        return update

    def write_head(self, trained: Mapping[str, Array], rng: np.random.Generator) -> bytes:
        """Return the head of the payload. `trained` has passed `check`. Coarse arrays are rounded at random."""
        dtypes = bytes(_NUMBERS[trained[name].dtype] if name in trained else _ABSENT for name in self.arrays)
        parts = [
            _coarsely(trained[name].astype(np.float64) - self.arrays[name], rng)
            if name in self.coarse
            else trained[name].tobytes()
            for name in self.arrays
            if name in trained and name not in self._compressed
        ]
        return b"".join([dtypes, *parts])

    def read_head(self, head: bytes) -> tuple[DTypes, dict[str, Array]]:
        """Return the dtypes of the arrays that were sent, and those of them that are not in the vector."""
        at, unchanged = len(self.arrays), {}
        if not set(head[:at]) <= {_ABSENT, *DTYPES} or len(head) < at:
            raise CorruptMessage(f"the head does not begin with the dtypes of {at} arrays")
        dtypes = {name: DTYPES[number] for name, number in zip(self.arrays, head, strict=False) if number != _ABSENT}
        for name, dtype in dtypes.items():
            if name in self._compressed:
                if dtype.kind != "f":
                    raise CorruptMessage(f"{name} cannot be {dtype}")
                continue
            size, is_coarse = self.arrays[name].size, name in self.coarse
            start, at = at, at + (_STEP.size + size if is_coarse else dtype.itemsize * size)
            if at > len(head) or (is_coarse and dtype.kind != "f"):
                raise CorruptMessage(f"the head ends in {name}, or has another type for it")
            shape = self.arrays[name].shape
            if is_coarse:
                change = np.frombuffer(head[start + _STEP.size : at], dtype=np.int8) * _STEP.unpack_from(head, start)[0]
                with np.errstate(over="ignore", invalid="ignore"):
                    base = self.arrays[name]
                    least = 0.0 if base.size and base.min() >= 0 < base.max() else -np.inf
                    value = np.asarray(np.maximum(self.arrays[name] + change.reshape(shape), least), dtype=dtype)
            else:
                value = np.frombuffer(head[start:at], dtype=dtype).reshape(shape)
            unchanged[name] = value
        if at != len(head):
            raise CorruptMessage(f"the head has {len(head) - at} bytes after the arrays")
        check_finite(unchanged)
        return dtypes, unchanged

    def apply(self, update: Vector, dtypes: DTypes, unchanged: Mapping[str, Array]) -> dict[str, Array]:
        """Return the client's arrays, as precisely as the scheme conveys them; the update's memory is used for them."""
        changed: dict[str, Array] = {}
        with np.errstate(over="ignore"):
            for name, change in self.layout.split(update):
                if self.arrays[name].dtype == dtypes[name] == np.float32:
                    changed[name] = np.add(self.arrays[name], change, out=change)
                else:
                    changed[name] = np.asarray(self.arrays[name] + change, dtype=dtypes[name])
        check_finite(changed)
        return {name: (changed if name in changed else unchanged)[name] for name in self.arrays}

    def distance(self, trained: Mapping[str, Array]) -> float:
        """Return the norm of the difference to these arrays; counters and other integers have no part in it."""
        total = 0.0
        for name, base in self._floats(trained):
            ours, theirs = base.reshape(-1), trained[name].reshape(-1)
            for start in range(0, ours.size, _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                total += float(np.sum(np.square(theirs[part].astype(np.float64) - ours[part])))
        return math.sqrt(total)

    def part_of_the_way(self, trained: Mapping[str, Array], share: float) -> dict[str, Array]:
        """Return the arrays at this share of the way from the model to the trained ones; integers as trained."""
        nearer = {
            name: base + share * (trained[name] - base.astype(np.float64)) for name, base in self._floats(trained)
        }
        return {name: np.asarray(nearer.get(name, array), dtype=array.dtype) for name, array in trained.items()}

    def _floats(self, trained: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        for name, array in trained.items():
            if array.dtype.kind == "f" and name not in self.sent_unchanged:
                yield name, self.arrays[name]

    @cached_property
    def _compressed(self) -> frozenset[str]:
        return frozenset(self.layout.names)


def _coarsely(change: npt.NDArray[np.float64], rng: np.random.Generator) -> bytes:
    """Return differences as a step and a number of steps for each, rounded at random so that their mean is right."""
    step = np.float32(np.abs(change).max(initial=0) / _MOST_STEPS)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = change / np.float64(step) if step > 0 else np.zeros(change.shape)
        steps = np.clip(np.floor(exact + rng.random(change.shape)), -128, 127)
    if not np.isfinite(exact).all():
        raise TrainingDiverged("an array of the reply is not finite: training diverged; lower the learning rate")
    return _STEP.pack(step) + steps.astype(np.int8).tobytes()


def statistics_of(arrays: Mapping[str, Array]) -> frozenset[str]:
    """Return the names of the running statistics of normalisation layers, as torch and Keras call them."""
    floating = (name for name, array in arrays.items() if array.dtype.kind == "f")
    return frozenset(name for name in floating if name.rpartition(".")[2].startswith(("running_", "moving_")))


def check_finite(arrays: Mapping[str, Array]) -> None:
    """Raise an error if an entry is infinite or not a number: it would spoil every average."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CorruptMessage(f"{name} is not finite")
