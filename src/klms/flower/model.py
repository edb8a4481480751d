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
DTypes = list[np.dtype[Any]]
DTYPES = {
    number: np.dtype(name)
    for number, name in enumerate(
        ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1"), start=1
    )
}
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
        names = [name for name, array in self.arrays.items() if self._is_compressed(name, array)]
        return Layout(tuple(names), tuple(self.arrays[name].shape for name in names))

    @property
    def size(self) -> int:
        """Number of entries of all arrays, by which bits per parameter are counted."""
        return sum(array.size for array in self.arrays.values())

    @property
    def head_bytes(self) -> int:
        """Length of the head if clients send no float64.

        Strategies that compute in float64 send float64; clients answer in the precision that they train in.
        """
        unchanged = [array for name, array in self.arrays.items() if name not in self._compressed]
        widths = [min(4, array.itemsize) if array.dtype.kind == "f" else array.itemsize for array in unchanged]
        return len(self.arrays) + sum(array.size * width for array, width in zip(unchanged, widths, strict=True))

    def parts(self) -> Iterator[bytes | memoryview]:
        """Yield the whole model, for a fingerprint."""
        for name, array in self.arrays.items():
            yield f"{name}|{array.dtype.str}|{array.shape}|".encode()
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def check(self, trained: Mapping[str, Array]) -> None:
        """Raise an error unless these are the model's arrays, with types that klms can send."""
        if trained.keys() != self.arrays.keys():
            odd = sorted(trained.keys() ^ self.arrays.keys())
            raise InvalidArgument(
                f"the reply must have the arrays that were received; these differ: {', '.join(odd[:5])}"
            )
        for name, array in trained.items():
            if array.shape != self.arrays[name].shape:
                raise InvalidArgument(f"{name} was received as {self.arrays[name].shape}; the reply has {array.shape}")
            if array.dtype not in _NUMBERS:
                raise InvalidArgument(f"{name} has dtype {array.dtype}, which klms does not send")
            if name in self._compressed and array.dtype.kind != "f":
                raise InvalidArgument(f"{name} was received as floating-point numbers; the reply has {array.dtype}")

    def difference(self, trained: Mapping[str, Array]) -> Vector:
        """Return what training changed in the compressed arrays. `trained` has passed `check`."""
        pieces = [
            (trained[name] - self.arrays[name]).astype(np.float32, copy=False).reshape(-1) for name in self.layout.names
        ]
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.float32)

    def write_head(self, trained: Mapping[str, Array]) -> bytes:
        """Return the head of the payload. `trained` has passed `check`."""
        dtypes = bytes(_NUMBERS[trained[name].dtype] for name in self.arrays)
        unchanged = [np.ascontiguousarray(trained[n]).tobytes() for n in self.arrays if n not in self._compressed]
        return b"".join([dtypes, *unchanged])

    def read_head(self, head: bytes) -> tuple[DTypes, dict[str, Array]]:
        """Return the dtypes of all arrays, and the arrays that were sent unchanged."""
        at, unchanged = len(self.arrays), {}
        if not set(head[:at]) <= DTYPES.keys() or len(head) < at:
            raise CorruptMessage(f"the head does not begin with the dtypes of {at} arrays")
        dtypes = [DTYPES[number] for number in head[:at]]
        for (name, like), dtype in zip(self.arrays.items(), dtypes, strict=True):
            if name in self._compressed:
                if dtype.kind != "f":
                    raise CorruptMessage(f"{name} cannot be {dtype}")
                continue
            start, at = at, at + dtype.itemsize * like.size
            if at > len(head):
                raise CorruptMessage(f"the head ends in {name}")
            unchanged[name] = np.frombuffer(head[start:at], dtype=dtype).reshape(like.shape)
        if at != len(head):
            raise CorruptMessage(f"the head has {len(head) - at} bytes after the arrays")
        check_finite(unchanged)
        return dtypes, unchanged

    def apply(self, update: Vector, dtypes: DTypes, unchanged: Mapping[str, Array]) -> dict[str, Array]:
        """Return the client's arrays, as precisely as the scheme tells them."""
        changes = dict(self.layout.split(update))
        with np.errstate(over="ignore"):
            compressed = {
                name: (array + changes[name]).astype(dtype, copy=False)
                for (name, array), dtype in zip(self.arrays.items(), dtypes, strict=True)
                if name in changes
            }
        check_finite(compressed)
        return {name: compressed[name] if name in compressed else unchanged[name] for name in self.arrays}

    @cached_property
    def _compressed(self) -> frozenset[str]:
        return frozenset(self.layout.names)

    def _is_compressed(self, name: str, array: Array) -> bool:
        large = array.size > 0 and (array.ndim > 1 or array.size > self.small)
        return array.dtype.kind == "f" and large and name not in self.sent_unchanged


def check_finite(arrays: Mapping[str, Array]) -> None:
    """Raise an error if an entry is infinite or not a number: it would spoil every average."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CorruptMessage(f"{name} is not finite")
