"""Named arrays as bytes: the common container of messages, snapshots, states and checkpoints.

0  version (u8)   1  length of the description (u32)   5  description   then the arrays, end to end

The description is deflated JSON: `{"names": [...], "types": [...], "shapes": [...], "meta": ...}`, with types as NumPy
writes them. safetensors follows the same idea, but its header is not deflated and has the offsets of every array. These
offsets alone would take more bytes than a message at 0.1 bits per parameter. Arrays are C-ordered and little-endian.

A packed container also lists `lengths`, the number of bytes in which each array is stored. If that is the array's own
size, the array is stored unchanged. Otherwise the stored bytes begin with the number of values in a table (u16). If
this number is 0, the array follows, deflated: the first bytes of all entries, then the second bytes, and so on. If it
is not 0, the values of the table follow, and then, deflated, the index of each entry's value (u8). This suits averages
of masks, for example, which have few distinct values.

Input is untrusted. All shapes are known before anything is unpacked, and their total size is bounded. A reader for an
older version belongs in `read_description`.
"""

import json
import math
import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from klms.errors import CorruptMessage, InvalidArgument, UnsupportedMessage
from klms.numerics.checks import checked_shape

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
NAMES = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
DTYPES: dict[int, np.dtype[Any]] = dict(enumerate(map(np.dtype, NAMES), start=1))
"""Types of the arrays that klms sends, by the number that stands for a type in a message."""
BFLOAT16 = np.dtype("V2")
"""Stands for bfloat16, the upper half of a float32, which NumPy lacks. Only messages of updates hold such arrays."""
MOST_TEXT = 1 << 22
"""Maximum size of a description's JSON in bytes: enough for fifty thousand arrays, read in a fraction of a second."""

_VERSION = 1
_HEAD = struct.Struct("<BI")
_COUNT = struct.Struct("<H")
_KNOWN = {name: np.dtype(name) for name in NAMES}
_BFLOAT16_NAME = "bfloat16"
_MOST_VALUES = 256  # in a table
_PEEK = 4096  # entries; if these have too many different values, so has the array
_LONGEST = 80  # characters of a name that are shown


class ArrayInfo(NamedTuple):
    """Name, type and shape of an array, as in a description."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def entries(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * self.entries

    def __str__(self) -> str:
        name = self.name if len(self.name) <= _LONGEST else self.name[:_LONGEST] + "..."
        return f"{name!r} of type {self.type_name} and shape {self.shape}"

    @property
    def type_name(self) -> str:
        return _type_name(self.dtype)


class Typed(Protocol):
    """Anything with the type and the shape of an array."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class Description(NamedTuple):
    """The description of a container: its arrays, and any other data, `meta`."""

    arrays: tuple[ArrayInfo, ...]
    meta: Any
    lengths: tuple[int, ...]
    """Number of bytes in which each array is stored."""
    end: int
    """Number of bytes before the first array."""


def describe(
    arrays: Mapping[str, Typed], meta: object = None, lengths: Sequence[int] | None = None, *, bfloat16: bool = False
) -> bytes:
    """Return everything in a container but its arrays; raise `InvalidArgument` if no reader would accept it.

    Arrays of `BFLOAT16` are accepted only if `bfloat16` is set, here and in `read_description`.
    """
    parts: dict[str, object] = {
        "names": list(arrays),
        "types": [_type_name(array.dtype) for array in arrays.values()],
        "shapes": [array.shape for array in arrays.values()],
    }
    if meta is not None:
        parts["meta"] = meta
    if lengths is not None:
        parts["lengths"] = lengths
    try:
        text = json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode()
        _parse(text, 0, bfloat16)
    except (CorruptMessage, UnicodeEncodeError) as error:
        raise InvalidArgument(f"the arrays cannot be sent: {error}") from error
    packed = zlib.compress(text, 9)
    return _HEAD.pack(_VERSION, len(packed)) + packed


def write_arrays(arrays: Arrays, meta: object = None, *, packed: bool = False) -> bytes:
    """Return the arrays as bytes, packed or unchanged, with `meta`, which may be anything that JSON can hold."""
    parts: list[Any] = [little(array) for array in arrays.values()]
    if packed:
        parts = list(map(_packed, parts))
    lengths = list(map(len, parts)) if packed else None
    return b"".join([describe(arrays, meta, lengths), *parts])


def read_description(data: bytes | memoryview, *, bfloat16: bool = False) -> Description:
    """Return the description of a container. The data may end anywhere after the description."""
    if len(data) < _HEAD.size:
        raise CorruptMessage("the description of the arrays is cut off")
    version, length = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise UnsupportedMessage(f"version {version} of the container; this release reads version {_VERSION}")
    end = _HEAD.size + length
    if len(data) < end:
        raise CorruptMessage("the description of the arrays is cut off")
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data[_HEAD.size : end], MOST_TEXT + 1)
    except zlib.error as error:
        raise CorruptMessage(f"the description of the arrays cannot be read: {error}") from error
    if len(text) <= MOST_TEXT and (not inflater.eof or inflater.unused_data):
        raise CorruptMessage("the description of the arrays is cut off, or other bytes follow it")
    return _parse(text, end, bfloat16)


def description_in(file: IO[bytes]) -> bytes:
    """Read the bytes that `read_description` needs from the current place of a file; fewer if the file ends."""
    head = file.read(_HEAD.size)
    length = _HEAD.unpack(head)[1] if len(head) == _HEAD.size else 0
    return head + file.read(min(length, MOST_TEXT))


def read_arrays(data: bytes, limit: int | None = None) -> tuple[dict[str, Array], Any]:
    """Undo `write_arrays`; raise a `KLMSError` for other bytes.

    Arrays that are not packed are read-only views of the bytes. All arrays together take at most `limit` bytes, by
    default no more than the data itself.
    """
    described, view = read_description(data), memoryview(data)
    if described.end + sum(described.lengths) != len(data):
        raise CorruptMessage(f"the description and its arrays do not take exactly {len(data):,} bytes")
    return _read(described, lambda place, length: view[place : place + length], len(data) if limit is None else limit)


def read_some(file: IO[bytes], start: int, only: Collection[str], limit: int) -> dict[str, Array]:
    """Return the named arrays that the container at this place of a file holds; no other arrays are loaded."""
    file.seek(start)
    described = read_description(description_in(file))

    def take(place: int, length: int) -> bytes:
        file.seek(start + place)
        return file.read(length)

    return _read(described, take, limit, only)[0]


def joined(groups: Mapping[str, Arrays]) -> dict[str, Array]:
    """Return the arrays of several groups in one dictionary, as `group.name`."""
    return {f"{group}.{name}": array for group, arrays in groups.items() for name, array in arrays.items()}


def grouped(arrays: Arrays, groups: Collection[str]) -> dict[str, dict[str, Array]]:
    """Undo `joined`; raise `CorruptMessage` if an array belongs to another group."""
    found: dict[str, dict[str, Array]] = {group: {} for group in groups}
    for name, array in arrays.items():
        group, _, own = name.partition(".")
        if group not in found:
            raise CorruptMessage(f"there is an array {name!r}, which does not belong here")
        found[group][own] = array
    return found


def little(array: Array) -> Array:
    """Return an array in the form in which it is written: contiguous and little-endian."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)


def _type_name(dtype: np.dtype[Any]) -> str:
    return _BFLOAT16_NAME if dtype == BFLOAT16 else dtype.newbyteorder("<").str


def _parse(text: bytes, end: int, bfloat16: bool) -> Description:
    if len(text) > MOST_TEXT:
        raise CorruptMessage(
            f"names, shapes and types take more than {MOST_TEXT:,} bytes: use shorter names, or several messages"
        )
    try:
        found = json.loads(text.decode())
        names, types, shapes = (list(found[part]) for part in ("names", "types", "shapes"))
        known = _KNOWN | {_BFLOAT16_NAME: BFLOAT16} if bfloat16 else _KNOWN
        arrays = tuple(_info(*parts, known) for parts in zip(names, types, shapes, strict=False))
        lengths = tuple(found.get("lengths", [one.nbytes for one in arrays]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptMessage(f"the description of the arrays cannot be read: {error!r}") from error
    if not len(names) == len(types) == len(shapes) == len(lengths):
        raise CorruptMessage("the description of the arrays is inconsistent")
    if len(set(names)) < len(names):
        raise CorruptMessage("the names of arrays are not different strings of Unicode")
    if not all(type(length) is int and length >= 0 for length in lengths):
        raise CorruptMessage("the lengths of arrays are not numbers of bytes")
    return Description(arrays, found.get("meta"), lengths, end)


def _info(name: object, dtype: object, shape: object, known: Mapping[str, np.dtype[Any]]) -> ArrayInfo:
    try:
        unicode = isinstance(name, str) and name.encode() is not None
    except UnicodeEncodeError:  # half of a surrogate pair, which cannot be printed
        unicode = False
    if not unicode:
        raise CorruptMessage("the names of arrays are not different strings of Unicode")
    if not isinstance(dtype, str) or dtype not in known:
        raise CorruptMessage(f"an array is of {str(dtype)[:_LONGEST]!r}, which is not a type that klms sends")
    return ArrayInfo(str(name), known[dtype], checked_shape(shape))


def _read(
    described: Description,
    take: Callable[[int, int], bytes | memoryview],
    limit: int,
    only: Collection[str] | None = None,
) -> tuple[dict[str, Array], Any]:
    wanted = [one for one in described.arrays if only is None or one.name in only]
    if sum(one.nbytes for one in wanted) > limit:
        raise CorruptMessage(f"the arrays take more than {limit:,} bytes")
    arrays: dict[str, Array] = {}
    place = described.end
    for one, length in zip(described.arrays, described.lengths, strict=True):
        if only is None or one.name in only:
            stored = take(place, length)
            if len(stored) < length:
                raise CorruptMessage(f"the bytes end in the array {one.name!r}")
            arrays[one.name] = read_array(one, stored)
        place += length
    return arrays, described.meta


def _packed(array: Array) -> bytes:
    """Return an array packed, or unchanged if packing does not make it smaller."""
    table = _table(array)
    if table is None:
        planes = np.ascontiguousarray(array.reshape(-1, 1).view(np.uint8).T)
        packed = _COUNT.pack(0) + _deflated(planes, strings=array.dtype.kind != "f")
    else:
        packed = _COUNT.pack(table[0].size) + table[0].tobytes() + _deflated(table[1], strings=False)
    return packed if len(packed) < array.nbytes else array.tobytes()


def read_array(one: ArrayInfo, stored: bytes | memoryview) -> Array:
    """Return the array that is stored in these bytes: a view of them, or an unpacked copy."""
    length = len(stored)
    if one.dtype.kind == "b" and length == one.nbytes:
        return np.not_equal(np.frombuffer(stored, np.uint8), 0).reshape(one.shape)
    if length == one.nbytes:
        return np.frombuffer(stored, one.dtype).reshape(one.shape)
    if length < _COUNT.size:
        raise CorruptMessage(f"the array {one.name!r} is cut off")
    (count,) = _COUNT.unpack_from(stored)
    if count == 0:
        planes = np.frombuffer(_inflated(stored[_COUNT.size :], one.nbytes), np.uint8)
        return np.ascontiguousarray(planes.reshape(one.dtype.itemsize, -1).T).view(one.dtype).reshape(one.shape)
    start = _COUNT.size + count * one.dtype.itemsize
    indices = np.frombuffer(_inflated(stored[start:], one.entries), np.uint8)
    if start > length or indices.max(initial=0) >= count:
        raise CorruptMessage(f"the array {one.name!r} has no table of its values")
    return np.frombuffer(stored[_COUNT.size : start], one.dtype)[indices].reshape(one.shape)


def _table(array: Array) -> tuple[Array, npt.NDArray[np.uint8]] | None:
    """Return the distinct values of a vector, and for each entry the index of its value; None if there are too many."""
    if array.ndim != 1 or array.dtype.kind != "f" or array.size < _PEEK:
        return None
    bits = array.view(f"u{array.dtype.itemsize}")  # as numbers, 0 and -0 would be the same value
    if np.unique(bits[:_PEEK]).size > _MOST_VALUES // 2:
        return None
    values = np.unique(bits)
    if values.size > _MOST_VALUES:
        return None
    return values.view(array.dtype), np.searchsorted(values, bits).astype(np.uint8)


def _deflated(array: Array, *, strings: bool) -> bytes:
    """Deflate an array. Without `strings`, repeated strings are not searched for, which takes a tenth of the time."""
    strategy = zlib.Z_DEFAULT_STRATEGY if strings else zlib.Z_RLE
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS, strategy=strategy)
    return deflater.compress(array.tobytes()) + deflater.flush()


def _inflated(data: bytes | memoryview, size: int) -> bytes:
    """Inflate exactly this many bytes; raise an error if the data hold fewer or more."""
    inflater = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        inflated = inflater.decompress(data, size + 1)
    except zlib.error as error:
        raise CorruptMessage(f"an array cannot be unpacked: {error}") from error
    if len(inflated) != size or not inflater.eof or inflater.unused_data:
        raise CorruptMessage("an array unpacks to fewer or more entries than it has")
    return inflated
