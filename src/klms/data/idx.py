"""IDX, the format of MNIST and its kin: a magic number, the dimensions, the bytes. Plain or gzipped."""

import gzip
import math
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from klms.data.errors import DataError

# The largest official file (EMNIST by class) is 0.55 GB; a header that claims more than this is not believed.
MAX_BYTES = 1 << 31


def decode(data: bytes, origin: str) -> npt.NDArray[np.uint8]:
    """The array of unsigned bytes in an IDX file, whose name for error messages is `origin`.

    >>> decode(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "labels").tolist()
    [7, 8, 9]
    """
    shape = _shape(data, origin)
    start, count = 4 + 4 * len(shape), math.prod(shape)
    if len(data) != start + count:
        raise DataError(f"{origin}: {len(data)} bytes, but its header promises {start + count}; download it again")
    return np.frombuffer(data, np.uint8, count, start).reshape(shape).copy()


def read(path: Path) -> npt.NDArray[np.uint8]:
    """The array in an IDX file; one whose name ends in .gz is unpacked first, as far as its header promises."""
    try:
        if path.suffix != ".gz":
            return decode(path.read_bytes(), str(path))
        with gzip.open(path) as file:
            head = file.read(4)
            head += file.read(4 * head[3] if len(head) == 4 else 0)
            # One byte more than promised, so that a longer file is noticed and a shorter one is read to its checksum.
            return decode(head + file.read(math.prod(_shape(head, str(path))) + 1), str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again") from error


def _shape(data: bytes, origin: str) -> tuple[int, ...]:
    if len(data) < 4 or data[:3] != b"\0\0\x08" or not 1 <= data[3] <= 4 or len(data) < 4 + 4 * data[3]:
        raise DataError(f"{origin}: not an IDX file of unsigned bytes; download it again")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    if math.prod(shape) > MAX_BYTES:
        raise DataError(f"{origin}: its header promises {math.prod(shape)} bytes, which no data set here has")
    return shape


def find(folders: Iterable[Path], prefix: str = "") -> list[Path] | None:
    """The four files of the first folder that has them all: training images and labels, test images and labels."""
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
