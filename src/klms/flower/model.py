"""A model as Flower sends it, a dictionary of arrays, and the bytes of an update of it.

The differences of all floating-point arrays are compressed together, as one vector. Sent unchanged are integers,
booleans, and arrays of at most one dimension and `SMALL` entries: biases, the parameters and running statistics of
normalisation layers, and counters. They are a small part of a model, and some do not tolerate noise: a variance must
not become negative.

The head of a payload holds the dtype of every array (one byte each) and the arrays that are sent unchanged, end to end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from klms.compressors.base import Vector
from klms.compressors.layout import Layout
from klms.errors import CorruptMessage, InvalidArgument

SMALL = 4096

Array = npt.NDArray[Any]
DTypes = dict[str, np.dtype[Any]]
_NAMES = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
DTYPES: dict[int, np.dtype[Any]] = dict(enumerate(map(np.dtype, _NAMES), start=1))
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Model:
    """The arrays that the server sent, to which an update is the difference. Their order is that of the vector."""

    arrays: Mapping[str, Array]
    small: int = SMALL
    sent_unchanged: frozenset[str] = frozenset()
    """Further arrays that are not compressed: integers that a strategy's average turned into floating-point numbers."""

    @cached_property
    def layout(self) -> Layout:
        """Layout of the arrays that are compressed."""
        floating = {n: a for n, a in self.arrays.items() if a.dtype.kind == "f" and n not in self.sent_unchanged}
        shapes = {n: a.shape for n, a in floating.items() if a.size > (0 if a.ndim > 1 else self.small)}
        return Layout(tuple(shapes), tuple(shapes.values()))

    @property
    def size(self) -> int:
        """Number of entries of all arrays, by which bits per parameter are counted."""
        return sum(array.size for array in self.arrays.values())

    @property
    def head_bytes(self) -> int:
        """Length of the head if clients train in float32 at most, though a strategy may send them float64."""
        unchanged = [array for name, array in self.arrays.items() if name not in self._compressed]
        return len(self.arrays) + sum(a.size * min(a.itemsize, 4 if a.dtype.kind == "f" else 8) for a in unchanged)

    def parts(self) -> Iterator[bytes | memoryview]:
        """Yield the whole model, for a fingerprint."""
        for name, array in self.arrays.items():
            yield f"{name}|{array.dtype.str}|{array.shape}|".encode()
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def check(self, trained: Mapping[str, Array]) -> None:
        """Raise an error unless these are the model's arrays, with types that klms can send."""
        if trained.keys() != self.arrays.keys():
            differ = ", ".join(sorted(trained.keys() ^ self.arrays.keys())[:5])
            raise InvalidArgument(f"the reply must have the arrays that were received; these differ: {differ}")
        for name, array in trained.items():
            if array.shape != self.arrays[name].shape:
                raise InvalidArgument(f"{name} was received as {self.arrays[name].shape}; the reply has {array.shape}")
            if array.dtype not in _NUMBERS:
                raise InvalidArgument(f"{name} has dtype {array.dtype}, which klms does not send")
            if name in self._compressed and array.dtype.kind != "f":
                raise InvalidArgument(f"{name} was received as floating-point numbers; the reply has {array.dtype}")

    def difference(self, trained: Mapping[str, Array]) -> Vector:
        """Return what training changed in the compressed arrays. `trained` has passed `check`."""
        changes = [(trained[name] - self.arrays[name]).ravel() for name in self.layout.names]
        return np.concatenate([np.zeros(0, dtype=np.float32), *changes], dtype=np.float32)

    def write_head(self, trained: Mapping[str, Array]) -> bytes:
        """Return the head of the payload. `trained` has passed `check`."""
        dtypes = bytes(_NUMBERS[trained[name].dtype] for name in self.arrays)
        unchanged = [trained[name].tobytes() for name in self.arrays if name not in self._compressed]
        return b"".join([dtypes, *unchanged])

    def read_head(self, head: bytes) -> tuple[DTypes, dict[str, Array]]:
        """Return the dtypes of all arrays, and the arrays that were sent unchanged."""
        at, unchanged = len(self.arrays), {}
        if not set(head[:at]) <= DTYPES.keys() or len(head) < at:
            raise CorruptMessage(f"the head does not begin with the dtypes of {at} arrays")
        dtypes = {name: DTYPES[number] for name, number in zip(self.arrays, head[:at], strict=True)}
        for name, dtype in dtypes.items():
            if name in self._compressed:
                if dtype.kind != "f":
                    raise CorruptMessage(f"{name} cannot be {dtype}")
                continue
            start, at = at, at + dtype.itemsize * self.arrays[name].size
            if at > len(head):
                raise CorruptMessage(f"the head ends in {name}")
            unchanged[name] = np.frombuffer(head[start:at], dtype=dtype).reshape(self.arrays[name].shape)
        if at != len(head):
            raise CorruptMessage(f"the head has {len(head) - at} bytes after the arrays")
        check_finite(unchanged)
        return dtypes, unchanged

    def apply(self, update: Vector, dtypes: DTypes, unchanged: Mapping[str, Array]) -> dict[str, Array]:
        """Return the client's arrays, as precisely as the scheme conveys them."""
        changes = self.layout.split(update)
        with np.errstate(over="ignore"):
            changed = {n: (self.arrays[n] + change).astype(dtypes[n], copy=False) for n, change in changes}
        check_finite(changed)
        return {name: (changed if name in changed else unchanged)[name] for name in self.arrays}

    @cached_property
    def _compressed(self) -> frozenset[str]:
        return frozenset(self.layout.names)


def check_finite(arrays: Mapping[str, Array]) -> None:
    """Raise an error if an entry is infinite or not a number: it would spoil every average."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CorruptMessage(f"{name} is not finite")
