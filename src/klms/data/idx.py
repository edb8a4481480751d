"""IDX, the format of MNIST and its relatives: a magic number, the dimensions and the bytes; plain or gzipped."""

import gzip
import math
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from klms.errors import DataError

# The largest official file (EMNIST by class) has 0.55 GB.
MAX_BYTES = 1 << 31
# No deflate stream expands by more than this factor.
MAX_EXPANSION = 1032


def decode(data: bytes, origin: str) -> npt.NDArray[np.uint8]:
    """The array of unsigned bytes in an IDX file; error messages name the file `origin`.

    >>> decode(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "labels").tolist()
    [7, 8, 9]
    """
    shape = _shape(data, origin)
    start, count = 4 + 4 * len(shape), math.prod(shape)
    if len(data) != start + count:
        raise DataError(
            f"{origin}: the file has {len(data)} bytes, but its header promises {start + count}; download it again"
        )
    return np.frombuffer(data, np.uint8, count, start).reshape(shape).copy()


def read(path: Path) -> npt.NDArray[np.uint8]:
    """The array in an IDX file; a file whose name ends in .gz is unpacked, but only as far as its header promises."""
    try:
        if path.suffix != ".gz":
            return decode(path.read_bytes(), str(path))
        with gzip.open(path) as file:
            head = file.read(4)
            head += file.read(4 * head[3] if len(head) == 4 else 0)
            count = math.prod(_shape(head, str(path)))
            if count > MAX_EXPANSION * path.stat().st_size:
                raise DataError(f"{path}: its header promises {count} bytes, more than it can hold; download it again")
            # One more byte than promised, so that a longer file is noticed and the checksum is read.
            return decode(head + file.read(count + 1), str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); download it again") from error


def _shape(data: bytes, origin: str) -> tuple[int, ...]:
    if len(data) < 4 or data[:3] != b"\0\0\x08" or not 1 <= data[3] <= 4 or len(data) < 4 + 4 * data[3]:
        raise DataError(f"{origin} is not an IDX file of unsigned bytes; download it again")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    if math.prod(shape) > MAX_BYTES:
        raise DataError(
            f"{origin}: its header promises {math.prod(shape)} bytes, but no data set has more than {MAX_BYTES}"
        )
    return shape


def find(folders: Iterable[Path], prefix: str = "") -> list[Path] | None:
    """The files of the first folder that has all four: training images and labels, then test images and labels."""
    for folder in folders:
        found = [
            next((path for path in _spellings(folder, f"{prefix}{half}-{what}") if path.is_file()), None)
            for half in (("train", "test") if prefix else ("train", "t10k"))
            for what in ("images-idx3", "labels-idx1")
        ]
        files = [path for path in found if path is not None]
        if len(files) == 4:
            return files
    return None


def _spellings(folder: Path, stem: str) -> list[Path]:
    names = (f"{stem}-ubyte", f"{stem[:-5]}.{stem[-4:]}-ubyte")
    return [folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz")]
