"""A model as a dictionary of arrays, and the bytes of an update to it.

The differences of all floating-point arrays are compressed together, as one vector, except for arrays that do not
tolerate noise: the running statistics of normalisation layers, since a running variance must not become negative.
Running statistics are sent coarsely, as differences of 8 bits. They are sent unchanged if the rate is 8 bits per
parameter or more, or if the scheme has no rate. Integers and booleans are sent unchanged.

The head of a payload begins with 0 (u8) if it has all arrays, with the dtypes that the receiver knows. Otherwise it
begins with 1 and the dtype of every array (one byte each, 0 for an array that the client did not return). The arrays
that are not in the vector follow, end to end: unchanged, or as a step (f32) and a number of steps for each entry (i8).
The sign of the step says whether the trained array has negative entries; if it has none, as a variance, rounding must
not make any.
"""

import math
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from klms.compressors.base import LARGEST_ENTRY, Vector, largest_entry
from klms.compressors.layout import Layout
from klms.container import DTYPES, Array
from klms.errors import CorruptMessage, InvalidArgument, TrainingDiverged

_AT_ONCE = 1 << 20  # entries that are summed at a time, so that no copy of a whole array is made
_COARSE_BITS = 8
_MOST_STEPS = 127
_SEPARATORS = re.compile(r"[./|]")
_STATISTICS = ("running_", "moving_")
_PARAMETERS = ("weight", "bias", "kernel", "scale", "gamma", "beta")
_MOST_CHANNELS = 4096  # of a normalisation layer; ResNets have 2,048 at most
_STEP = struct.Struct("<f")

DTypes = dict[str, np.dtype[Any]]
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_ABSENT = 0
_AS_KNOWN, _LISTED = b"\x00", b"\x01"


@dataclass(frozen=True)
class Model:
    """The arrays that the server sent, in the order of the vector; an update is the difference from them."""

    arrays: Mapping[str, Array]
    sent_unchanged: frozenset[str] = frozenset()
    """Arrays that are not compressed even if they are floating-point, such as integers that a strategy has averaged."""
    coarse: frozenset[str] = frozenset()
    """Arrays that are sent as differences of 8 bits."""

    @cached_property
    def layout(self) -> Layout:
        """Layout of the arrays that are compressed."""
        left_out = self.sent_unchanged | self.coarse
        floating = {n: a for n, a in self.arrays.items() if a.dtype.kind == "f" and n not in left_out}
        shapes = {n: a.shape for n, a in floating.items() if a.size}
        return Layout(tuple(shapes), tuple(shapes.values()))

    @property
    def size(self) -> int:
        """Number of entries of all arrays: the number of parameters in bits per parameter."""
        return sum(array.size for array in self.arrays.values())

    @property
    def head_bytes(self) -> int:
        """Length of the head if clients train in float32 or a narrower type, even where the strategy sends float64."""
        unchanged = [array for name, array in self.arrays.items() if name not in self._compressed | self.coarse]
        coarse = sum(_STEP.size + self.arrays[name].size for name in self.coarse)
        sizes = (a.size * min(a.itemsize, 4 if a.dtype.kind == "f" else 8) for a in unchanged)
        is_wide = any(array.dtype.kind == "f" and array.itemsize > 4 for array in self.arrays.values())
        listed = len(self.arrays) if is_wide else 0
        return len(_LISTED) + listed + coarse + sum(sizes)

    def only(self, names: Collection[str]) -> Self:
        """Return the part of the model whose arrays have these names."""
        if len(names) == len(self.arrays):
            return self
        return replace(self, arrays={name: array for name, array in self.arrays.items() if name in names})

    def check(self, trained: Mapping[str, Array]) -> None:
        """Raise an error unless these are all or some of the model's arrays, with types that klms can send."""
        for name, array in trained.items():
            if array.shape != self.arrays[name].shape:
                raise InvalidArgument(f"{name} was received as {self.arrays[name].shape}; the reply has {array.shape}")
            if array.dtype not in _NUMBERS:
                raise InvalidArgument(f"{name} has dtype {array.dtype}, which klms does not send")
            if name in self._compressed | self.coarse and array.dtype.kind != "f":
                raise InvalidArgument(f"{name} was received as floating-point numbers; the reply has {array.dtype}")

    def difference(self, trained: Mapping[str, Array]) -> Vector:
        """Return how training changed the compressed arrays. `trained` has all of them and has passed `check`."""
        update = np.empty(self.layout.d, dtype=np.float32)
        for name, change in self.layout.split(update):
            change[...] = trained[name] - self.arrays[name]
        return update

    def write_head(self, trained: Mapping[str, Array], rng: np.random.Generator) -> bytes:
        """Return the head of the payload. `trained` has passed `check`. Coarse arrays are rounded at random."""
        dtypes = {name: array.dtype for name, array in trained.items()}
        if all(dtypes.get(name) == array.dtype for name, array in self.arrays.items()):
            types = _AS_KNOWN
        else:
            types = _LISTED + bytes(_NUMBERS[dtypes[name]] if name in dtypes else _ABSENT for name in self.arrays)
        parts = [
            _coarsely(self.arrays[name], trained[name], rng) if name in self.coarse else trained[name].tobytes()
            for name in self.arrays
            if name in trained and name not in self._compressed
        ]
        return b"".join([types, *parts])

    def read_head(self, head: bytes, *, trusted: bool = False) -> tuple[DTypes, dict[str, Array]]:
        """Return the dtypes of the arrays that were sent, and the sent arrays that are not in the vector.

        Arrays of a sender that is not `trusted` must be finite where they were.
        """
        dtypes, at = self._read_types(head)
        unchanged = {}
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
                value = _refined(self.arrays[name], head[start:at], dtype)
            else:
                value = np.frombuffer(head[start:at], dtype=dtype).reshape(shape).copy()
            unchanged[name] = value
        if at != len(head):
            raise CorruptMessage(f"the head has {len(head) - at} bytes after the arrays")
        if not trusted:
            check_finite(unchanged, self.arrays)
        return dtypes, unchanged

    def _read_types(self, head: bytes) -> tuple[DTypes, int]:
        """Return the dtypes of the arrays that were sent, and the number of bytes that say so."""
        if head[:1] == _AS_KNOWN:
            return {name: array.dtype for name, array in self.arrays.items()}, 1
        end = 1 + len(self.arrays)
        numbers = head[1:end]
        if head[:1] != _LISTED or len(head) < end or not set(numbers) <= {_ABSENT, *DTYPES}:
            raise CorruptMessage(f"the head does not begin with the dtypes of {len(self.arrays)} arrays")
        listed = zip(self.arrays, numbers, strict=True)
        return {name: DTYPES[number] for name, number in listed if number != _ABSENT}, end

    def apply(self, update: Vector, dtypes: DTypes, unchanged: Mapping[str, Array]) -> dict[str, Array]:
        """Return the client's arrays, as precisely as the scheme conveys them."""
        changed: dict[str, Array] = {}
        with np.errstate(over="ignore"):
            for name, change in self.layout.split(update):
                changed[name] = _as_type(self.arrays[name] + change, dtypes[name])
        check_finite(changed)
        return {name: (changed if name in changed else unchanged)[name] for name in self.arrays}

    def distance(self, trained: Mapping[str, Array]) -> float:
        """Return the norm of the difference from these arrays, without counters and other integers."""
        total = 0.0
        for name, base in self._floats(trained):
            ours, theirs = base.reshape(-1), trained[name].reshape(-1)
            for start in range(0, ours.size, _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                total += float(np.sum(np.square(theirs[part].astype(np.float64) - ours[part])))
        return math.sqrt(total)

    def _floats(self, trained: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        for name, array in trained.items():
            if array.dtype.kind == "f" and name not in self.sent_unchanged:
                yield name, self.arrays[name]

    @cached_property
    def _compressed(self) -> frozenset[str]:
        return frozenset(self.layout.names)


@dataclass(frozen=True)
class Apart:
    """Names of the arrays that are not part of the vector, decided when an array is first seen.

    Their types may change later: a strategy's average may turn integers into floating-point numbers.
    """

    exact: frozenset[str] = frozenset()
    """Integers, and arrays that no update can change, such as a mask of infinities."""
    statistics: frozenset[str] = frozenset()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of all arrays that were seen."""

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> Self:
        return cls().with_new(arrays)

    def with_new(self, arrays: Mapping[str, Array]) -> Self:
        """Return a copy that also knows these arrays; those with known names and shapes are not looked at again."""
        new = {name: array for name, array in arrays.items() if self.shapes.get(name) != array.shape}
        if not new:
            return self
        exact = frozenset(name for name, array in new.items() if array.dtype.kind != "f" or not _may_change(array))
        statistics = statistics_of({name: array for name, array in new.items() if name not in exact})
        shapes = {name: array.shape for name, array in new.items()}
        return replace(
            self,
            exact=(self.exact - new.keys()) | exact,
            statistics=(self.statistics - new.keys()) | statistics,
            shapes={**self.shapes, **shapes},
        )

    def to_json(self) -> list[Any]:
        return [sorted(self.exact), sorted(self.statistics), {name: list(shape) for name, shape in self.shapes.items()}]

    @classmethod
    def from_json(cls, kept: Sequence[Any]) -> Self:
        """Undo `to_json`."""
        exact, statistics, shapes = kept
        return cls(frozenset(exact), frozenset(statistics), {name: tuple(shape) for name, shape in shapes.items()})

    def model(self, arrays: Mapping[str, Array], bits: float | None) -> Model:
        """Return the model; its running statistics are sent coarsely if the rate is below 8 bits per parameter."""
        exact, statistics = self.exact & arrays.keys(), self.statistics & arrays.keys()
        if bits is not None and bits < _COARSE_BITS:
            return Model(arrays, exact, statistics)
        return Model(arrays, exact | statistics)


def _as_type(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values as another type; a narrower type's largest numbers replace values beyond its range."""
    if values.dtype.itemsize > dtype.itemsize and np.isfinite(values).all():
        limit = float(np.finfo(dtype).max)
        values = np.clip(values, -limit, limit)
    return np.asarray(values, dtype=dtype)


def _coarsely(base: Array, trained: Array, rng: np.random.Generator) -> bytes:
    """Return differences as a step and a number of steps for each, rounded at random so that they are unbiased."""
    change: npt.NDArray[np.float64] = trained.astype(np.float64) - base
    if not np.isfinite(change).all():
        raise TrainingDiverged("an array of the reply is not finite: training diverged; lower the learning rate")
    step = np.float32(np.abs(change).max(initial=0) / _MOST_STEPS)
    exact = change / np.float64(step) if step > 0 else np.zeros(change.shape)
    steps = np.clip(np.floor(exact + rng.random(change.shape)), -128, 127)
    is_signed = trained.size > 0 and trained.min() < 0
    return _STEP.pack(-step if is_signed else step) + steps.astype(np.int8).tobytes()


def _refined(base: Array, part: bytes, dtype: np.dtype[Any]) -> Array:
    """Undo `_coarsely`."""
    (step,) = _STEP.unpack_from(part)
    steps = np.frombuffer(part[_STEP.size :], dtype=np.int8).reshape(base.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        value = base + steps * abs(step)
        if not np.signbit(step):
            value = np.maximum(value, 0.0)
        return _as_type(np.asarray(value), dtype)


def statistics_of(arrays: Mapping[str, Array]) -> frozenset[str]:
    """Return the names of running statistics, which do not tolerate noise.

    Running statistics are recognised by their names in torch, Keras and Flax. Where names say nothing, as in a list of
    arrays, a one-dimensional array without negative entries may be a variance, and is treated as a running statistic
    unless it has more entries than normalisation layers have channels.
    """
    return frozenset(name for name, array in arrays.items() if array.dtype.kind == "f" and _is_statistic(name, array))


def _is_statistic(name: str, array: Array) -> bool:
    last = _SEPARATORS.split(name)[-1]
    if last.startswith(_STATISTICS):
        return True
    if array.ndim != 1 or any(word in last for word in _PARAMETERS) or not 0 < array.size <= _MOST_CHANNELS:
        return False
    return bool(array.min() >= 0 < array.max())


def _may_change(array: Array) -> bool:
    """Return whether updates of an array can be compressed: all of its entries are finite, and not of extreme size."""
    return largest_entry(array) <= LARGEST_ENTRY  # false for NaN, too


def check_finite(arrays: Mapping[str, Array], base: Mapping[str, Array] | None = None) -> None:
    """Raise an error if an entry is infinite or not a number, which would spoil every average, unless the base has it.

    A base may have masks of infinities, which training leaves unchanged.
    """
    for name, array in arrays.items():
        if array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        own = None if base is None else base.get(name)
        odd = ~np.isfinite(array)
        if own is None or own.shape != array.shape or not np.array_equal(array[odd], own[odd], equal_nan=True):
            raise CorruptMessage(f"{name} is not finite")
