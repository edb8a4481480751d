"""Named arrays as bytes: the one container of snapshots, states and side information.

0  length of the description (u32)   4  description   then the arrays, end to end, C-ordered and little-endian

The description is deflated JSON: `{"arrays": [[name, dtype, shape], ...], "meta": ...}`, with dtypes as NumPy writes
them. safetensors has the same idea; its header is not deflated and has the offsets of every array, which alone would be
more than a message at 0.1 bits per parameter.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from klms.errors import CorruptMessage
from klms.numerics.checks import checked_shape

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
_LENGTH = struct.Struct("<I")
_MOST_DESCRIPTION = 1 << 24
"""Bytes of JSON that a reader inflates: a hundred thousand arrays with long names."""
NAMES = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
DTYPES: dict[int, np.dtype[Any]] = dict(enumerate(map(np.dtype, NAMES), start=1))
"""The types of arrays that klms sends, by the number that stands for each in a message."""
_KNOWN = set(NAMES)


class Shape(NamedTuple):
    """What a description says of an array."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def entries(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * self.entries


def describe(arrays: Arrays, meta: object = None) -> bytes:
    """Return the length of the description, and the description."""
    listed = [[name, _little(array).dtype.str, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps({"arrays": listed, "meta": meta}, separators=(",", ":"))
    described = zlib.compress(text.encode())
    return _LENGTH.pack(len(described)) + described


def write_arrays(arrays: Arrays, meta: object = None) -> bytes:
    """Return the arrays as bytes, with anything that JSON can hold beside them."""
    parts: list[Any] = [_little(array) for array in arrays.values()]
    return b"".join([describe(arrays, meta), *parts])


def read_description(data: bytes) -> tuple[list[Shape], Any, int]:
    """Return the shapes of all arrays, what stands beside them, and the place where the arrays begin."""
    if len(data) < _LENGTH.size:
        raise CorruptMessage("the description of the arrays is cut off")
    start = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    if start > len(data):
        raise CorruptMessage("the description of the arrays is cut off")
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data[_LENGTH.size : start], _MOST_DESCRIPTION)
        if not inflater.eof or inflater.unused_data:
            raise CorruptMessage("the description of the arrays is cut off or too long")
        found = json.loads(text)
        shapes = [_shape(name, dtype, shape) for name, dtype, shape in found["arrays"]]
        meta = found["meta"]
    except (ValueError, TypeError, KeyError, RecursionError, zlib.error) as error:
        raise CorruptMessage(f"the description of the arrays cannot be read: {error}") from error
    if len({one.name for one in shapes}) < len(shapes):
        raise CorruptMessage("two arrays have the same name")
    return shapes, meta, start


def read_arrays(data: bytes) -> tuple[dict[str, Array], Any]:
    """Undo `write_arrays`. The arrays are views of the bytes: nothing is allocated, and they cannot be written to."""
    shapes, meta, place = read_description(data)
    arrays: dict[str, Array] = {}
    for one in shapes:
        if place + one.nbytes > len(data):
            raise CorruptMessage(f"the bytes end in the array {one.name!r}")
        flat = np.frombuffer(data, one.dtype, one.entries, place) if one.entries else np.zeros(0, one.dtype)
        arrays[one.name] = flat.reshape(one.shape)
        place += one.nbytes
    if place != len(data):
        raise CorruptMessage(f"there are {len(data) - place} bytes after the arrays")
    return arrays, meta


def _shape(name: object, dtype: object, shape: object) -> Shape:
    if not isinstance(name, str) or dtype not in _KNOWN:
        raise CorruptMessage(f"{name!r} is not the name of an array, or {dtype!r} is not a type that klms sends")
    return Shape(name, np.dtype(str(dtype)), checked_shape(shape))


def _little(array: Array) -> Array:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little.reshape(array.shape)  # ascontiguousarray makes one dimension of none
