"""Hugging Face's safetensors files: the length of the header (u64), the header (JSON), and the tensors end to end.

The header gives the type, shape and place of each tensor by name, and text under `__metadata__`. The reader is as
strict as the library: the tensors must cover the data without holes, and none may overlap another.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from klms.container import BFLOAT16, Array, ArrayInfo
from klms.errors import CorruptMessage, DataError
from klms.numerics.checks import checked_shape
from klms.tensor_files.source import StoredSource, TensorFile

_LENGTH = struct.Struct("<Q")
_MOST_HEADER = 100_000_000  # bytes, as in the library
_METADATA = "__metadata__"
_ALIGNMENT = 8  # of the data, in bytes; the header is padded with spaces
_TYPES = {
    "BOOL": np.dtype("|b1"),
    "U8": np.dtype("|u1"),
    "I8": np.dtype("|i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def open_safetensors(path: Path) -> TensorFile:
    """Open a file and read its header; raise a `KLMSError` unless it is a safetensors file."""
    return TensorFile(path, _read_header)


def write_safetensors(file: IO[bytes], arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write arrays in order; bfloat16 arrays are given by their bits (`BFLOAT16`)."""
    if _METADATA in arrays:
        raise DataError(f"a file of safetensors cannot hold an array named {_METADATA!r}: write a .npz file")
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    place = 0
    for name, array in arrays.items():
        end = place + array.nbytes
        dtype = _NAMES[array.dtype.newbyteorder("<")]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(_LENGTH.pack(len(text)) + text)
    for array in arrays.values():
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _read_header(opened: TensorFile) -> None:
    if opened.size < _LENGTH.size:
        raise opened.damaged("the file is too short for safetensors")
    (length,) = _LENGTH.unpack(opened.read_at(0, _LENGTH.size))
    data = _LENGTH.size + length
    if length > _MOST_HEADER or data > opened.size:
        raise opened.damaged(f"a header of {length:,} bytes is not one of safetensors: is the download complete?")
    try:
        header = json.loads(opened.read_at(_LENGTH.size, length).decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise opened.damaged(f"the header is not one of safetensors: {error}") from error
    if not isinstance(header, dict):
        raise opened.damaged("the header is not one of safetensors: it is not a JSON object")
    opened.metadata = _metadata(opened, header.pop(_METADATA, {}))
    end = 0
    for one, place, stop in sorted(_tensors(opened, header), key=lambda found: found[1:]):
        if place != end:
            raise opened.damaged(f"tensor {one.name!r} overlaps another, or there is a hole before it")
        opened.sources[one.name] = StoredSource(opened, data + place, one.dtype, one.shape)
        end = stop
    if data + end != opened.size:
        raise opened.damaged(f"the tensors end after {data + end:,} bytes, and the file has {opened.size:,}")


def _tensors(opened: TensorFile, header: dict[str, Any]) -> Iterator[tuple[ArrayInfo, int, int]]:
    """Yield the tensors that a header describes, and where they begin and end."""
    for name, about in header.items():
        try:
            dtype, shape = about["dtype"], checked_shape(about["shape"])
            place, stop = about["data_offsets"]
        except (TypeError, KeyError, ValueError, CorruptMessage) as error:
            raise opened.damaged(f"the header does not describe tensor {name!r}: {error}") from error
        if not isinstance(dtype, str) or dtype not in _TYPES:
            raise opened.damaged(
                f"tensor {name!r} holds {dtype!s:.40}, which klms cannot send: convert it to one of {', '.join(_TYPES)}"
            )
        one = ArrayInfo(name, _TYPES[dtype], shape)
        if type(place) is not int or type(stop) is not int or place < 0 or stop - place != one.nbytes:
            raise opened.damaged(f"tensor {name!r} has {one.nbytes:,} bytes, and the header gives it another place")
        yield one, place, stop


def _metadata(opened: TensorFile, found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise opened.damaged("the metadata of the header is not a mapping from names to text")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found
