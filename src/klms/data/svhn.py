"""SVHN: house numbers in photographs, 32x32 colour images, from the official MATLAB files of cropped digits."""

from pathlib import Path

import numpy as np

from klms.data.dataset import Dataset, Half, images
from klms.data.matlab import read_matlab
from klms.errors import DataError

FILES = ("train_32x32.mat", "test_32x32.mat")


def from_folder(folder: Path) -> Dataset:
    """SVHN with 10 classes, the digits; the additional images of `extra_32x32.mat` are not used."""
    paths = [folder / name for name in FILES]
    if not all(path.is_file() for path in paths):
        raise DataError(f"{folder} does not hold the files {' and '.join(FILES)}")
    train, test = map(_half, paths)
    return images("svhn", train, test, 10)


def _half(path: Path) -> Half:
    found = read_matlab(path, {"X": "uint8", "y": "int64"})
    x, y = found["X"], found["y"].ravel()
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3):
        raise DataError(
            f"{path} does not hold images of 32 x 32 pixels and 3 colours, but {x.shape}; download it again"
        )
    digits = np.where(y == 10, 0, y)  # MATLAB counts from 1, so the digit 0 is the tenth class
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), digits
