"""NumPy files: `.npy` with one array, and `.npz` with several named arrays. Objects, which are pickles, are refused."""

import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from klms.compressors.arrays import ArraySource, Source
from klms.container import Array
from klms.errors import CorruptMessage
from klms.numerics.checks import checked_shape
from klms.tensor_files.source import StoredSource, TensorFile

_SUFFIX = ".npy"
_LONGEST = 8  # maximum number of bytes of a number that is sent in its own type
_FREE_BYTES, _BYTES_PER_BYTE = 1 << 28, 1 << 10  # limit on an archive's arrays, fixed and per byte of the archive
_KINDS = "fiub"
_UNREADABLE = (ValueError, KeyError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, CorruptMessage)
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, RuntimeError)


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]


def open_npy(path: Path) -> TensorFile:
    """Open a file of one array, which has an empty name."""
    return TensorFile(path, _read_array)


def open_npz(path: Path) -> TensorFile:
    """Open an archive of arrays and read them; raise a `KLMSError` if they would be far larger than the file."""
    return TensorFile(path, _read_archive)


def write_npy(file: IO[bytes], array: Array) -> None:
    """Write one array."""
    npy.write_array(file, array, allow_pickle=False)


def write_npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write an archive, as `np.savez` does, but with any names."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(name + _SUFFIX, "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


def _read_array(opened: TensorFile) -> None:
    header = _read_header(opened, opened.file, opened.size, "the array")
    place = opened.file.tell()
    if header.fortran_order or header.dtype.itemsize > _LONGEST:
        entries = np.frombuffer(opened.read_at(place, opened.size - place), header.dtype)
        opened.sources[""] = _source(entries, header)
    else:
        opened.sources[""] = StoredSource(opened, place, header.dtype, header.shape)


def _read_archive(opened: TensorFile) -> None:
    try:
        with zipfile.ZipFile(opened.file) as archive:
            members = archive.infolist()
            most = _FREE_BYTES + _BYTES_PER_BYTE * opened.size
            if sum(member.file_size for member in members) > most:
                raise opened.damaged(f"its arrays take more than {most:,} bytes: save it without compression")
            for member in members:
                name = member.filename.removesuffix(_SUFFIX)
                if name in opened.sources or name == member.filename:
                    raise opened.damaged(f"member {member.filename!r} is not an array, or occurs twice")
                with archive.open(member) as file:
                    opened.sources[name] = _read_member(opened, file, member.file_size, name)
    except _BROKEN as error:
        raise opened.damaged(f"the archive cannot be read: {error}") from error


def _read_member(opened: TensorFile, file: IO[bytes], size: int, name: str) -> Source:
    header = _read_header(opened, file, size, f"array {name!r}")
    entries = np.frombuffer(file.read(), header.dtype)
    if entries.size != math.prod(header.shape):
        raise opened.damaged(f"array {name!r} is cut off")
    return _source(entries, header)


def _source(entries: Array, header: _Header) -> Source:
    return ArraySource(entries.reshape(header.shape, order="F" if header.fortran_order else "C"))


def _read_header(opened: TensorFile, file: IO[bytes], size: int, what: str) -> _Header:
    """Return the header of an array that ends after `size` bytes; the file is left at the array's entries."""
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran_order, dtype = read(file)
        shape = checked_shape(shape)
    except _UNREADABLE as error:
        raise opened.damaged(f"{what} does not begin like an array of NumPy: {error}") from error
    if dtype.kind not in _KINDS:
        split = "pass its real and its imaginary part as two arrays"
        remedy = split if dtype.kind == "c" else "convert it with .astype('float32')"
        raise opened.damaged(f"{what} holds {dtype}, which cannot be sent: {remedy}")
    if size - file.tell() != dtype.itemsize * math.prod(shape):
        raise opened.damaged(f"{what} has another size than its header says: is the download complete?")
    return _Header(shape, fortran_order, dtype)
