"""A model as Flower sends it, a dictionary of arrays, and the bytes of an update of it.

Compressed, all together as one vector: the difference of every array of floating point. As they are pass integers,
booleans, and arrays of at most one dimension and `SMALL` entries: biases, the parameters and running statistics of
normalisation layers, counters. These are a small part of a model, and some do not bear noise: a variance must not
become negative.

The body of a payload: the dtype of every array (a byte each), the arrays that pass as they are, end to end, and the
message of the scheme.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from klms.codec import CorruptMessage
from klms.compressors.base import Vector
from klms.compressors.layout import Layout

SMALL = 4096

Array = npt.NDArray[Any]
DTYPES = {
    number: np.dtype(name)
    for number, name in enumerate(
        ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1"), start=1
    )
}
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Model:
    """What the server sent: what an update is the difference to. The order of its arrays is that of the vector."""

    arrays: Mapping[str, Array]
    small: int = SMALL
    kept: frozenset[str] = frozenset()
    """More that pass as they are: integers, which a strategy's average has made numbers with a point."""

    @cached_property
    def layout(self) -> Layout:
        """Of the arrays that are compressed."""
        names = [name for name, array in self.arrays.items() if self._is_compressed(name, array)]
        return Layout(tuple(names), tuple(self.arrays[name].shape for name in names))

    @property
    def size(self) -> int:
        """Entries of all arrays: what bits per parameter are counted by."""
        return sum(array.size for array in self.arrays.values())

    @property
    def head_bytes(self) -> int:
        """What comes before the message of the scheme, if clients send no float64.

        Strategies that compute with float64 send that; clients answer in the precision that they train in.
        """
        kept = (array for name, array in self.arrays.items() if name not in self._compressed)
        sizes = (array.size * (min(4, array.itemsize) if array.dtype.kind == "f" else array.itemsize) for array in kept)
        return len(self.arrays) + sum(sizes)

    def parts(self) -> Iterator[bytes | memoryview]:
        """All of it, for a fingerprint."""
        for name, array in self.arrays.items():
            yield f"{name}|{array.dtype.str}|{array.shape}|".encode()
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def difference(self, trained: Mapping[str, Array]) -> Vector:
        """What training changed, of the compressed arrays. The others are checked, too: all must be there."""
        if trained.keys() != self.arrays.keys():
            odd = sorted(trained.keys() ^ self.arrays.keys())
            raise ValueError(f"the reply must have the arrays that were received; these differ: {', '.join(odd[:5])}")
        for name, array in trained.items():
            if array.shape != self.arrays[name].shape:
                raise ValueError(f"{name} was received as {self.arrays[name].shape}, and is {array.shape} in the reply")
            if array.dtype not in _NUMBERS:
                raise ValueError(f"{name} has dtype {array.dtype}, which klms does not send")
            if name in self._compressed and array.dtype.kind != "f":
                raise ValueError(f"{name} was received as numbers with a point and is {array.dtype} in the reply")
        pieces = [
            (trained[name] - self.arrays[name]).astype(np.float32, copy=False).reshape(-1) for name in self.layout.names
        ]
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.float32)

    def write(self, trained: Mapping[str, Array], message: bytes) -> bytes:
        """The body. `trained` has passed `difference`."""
        dtypes = bytes(_NUMBERS[trained[name].dtype] for name in self.arrays)
        kept = [np.ascontiguousarray(trained[name]).tobytes() for name in self.arrays if name not in self._compressed]
        return b"".join([dtypes, *kept, message])

    def read(self, body: bytes) -> tuple[list[np.dtype[np.generic]], dict[str, Array], bytes]:
        """The dtypes, the arrays that passed as they are, and the message."""
        dtypes: list[np.dtype[np.generic]] = []
        for number in body[: len(self.arrays)]:
            if number not in DTYPES:
                raise CorruptMessage(f"{number} is not the number of a dtype")
            dtypes.append(DTYPES[number])
        at, kept = len(self.arrays), {}
        if len(dtypes) < len(self.arrays):
            raise CorruptMessage("the body ends among the dtypes")
        for (name, like), dtype in zip(self.arrays.items(), dtypes, strict=True):
            if name in self._compressed:
                if dtype.kind != "f":
                    raise CorruptMessage(f"{name} cannot be {dtype}")
                continue
            end = at + dtype.itemsize * like.size
            if end > len(body):
                raise CorruptMessage(f"the body ends in {name}")
            kept[name] = np.frombuffer(body[at:end], dtype=dtype).reshape(like.shape)
            if dtype.kind == "f" and not np.isfinite(kept[name]).all():
                raise CorruptMessage(f"{name} is not finite")
            at = end
        return dtypes, kept, body[at:]

    def apply(self, vector: Vector, dtypes: list[np.dtype[np.generic]], kept: Mapping[str, Array]) -> dict[str, Array]:
        """The client's arrays, as nearly as the scheme tells them."""
        changes = dict(self.layout.split(vector))
        with np.errstate(over="ignore"):  # the caller looks
            return {
                name: kept[name] if name in kept else (array + changes[name]).astype(dtype, copy=False)
                for (name, array), dtype in zip(self.arrays.items(), dtypes, strict=True)
            }

    @cached_property
    def _compressed(self) -> frozenset[str]:
        return frozenset(self.layout.names)

    def _is_compressed(self, name: str, array: Array) -> bool:
        large = array.size > 0 and (array.ndim > 1 or array.size > self.small)
        return array.dtype.kind == "f" and large and name not in self.kept
