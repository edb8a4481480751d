"""The form that every data set has in memory, and the check that it must pass before it is used or cached."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from klms.errors import DataError

Kind = Literal["image", "text"]
Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
LARGEST_FILE = 1 << 31
"""Maximum size of data files in bytes; the largest official file (EMNIST by class) is 0.55 GB."""
Half = tuple[Bytes, npt.NDArray[np.integer[Any]]]
"""Images and their labels, for training or for testing."""


@dataclass(frozen=True)
class Dataset:
    """A classification data set in memory.

    Images: `x` is uint8 `(n, channels, height, width)` and `y` is int64 `(n,)`. Text: `x` and `y` are int64 token ids
    `(n, length)`, and `y` is `x` shifted by one word. Token 0 is padding, which the loss must ignore, and token 1 is
    any word outside the vocabulary; `classes` is the size of the vocabulary, including those two. Owners are the
    indices of the examples' authors, or `None` where the authors are unknown.
    """

    name: str
    train_x: Bytes | Integers
    train_y: Integers
    test_x: Bytes | Integers
    test_y: Integers
    classes: int
    train_owner: Integers | None
    test_owner: Integers | None
    kind: Kind


def integer_labels(values: object, classes: int, origin: str) -> Integers:
    """Labels from a parsed JSON file: a list of integers in `[0, classes)`, not of fractions, booleans or text.

    >>> integer_labels([2, 0], 3, "labels.json").tolist()
    [2, 0]
    """
    if not isinstance(values, list):
        raise DataError(f"{origin}: the labels are not a list; download or create it again")
    for i, value in enumerate(values):
        if type(value) is not int or not 0 <= value < classes:
            raise DataError(f"{origin}: label {i} is not an integer in [0, {classes}); download or create it again")
    return np.array(values, np.int64)


def images(
    name: str, train: Half, test: Half, classes: int, owners: Sequence[Integers | None] = (None, None)
) -> Dataset:
    """A checked data set of images; images without a channel axis are grey."""
    halves = [(x[:, None] if x.ndim == 3 else x, y.astype(np.int64)) for x, y in (train, test)]
    return checked_images(Dataset(name, *halves[0], *halves[1], classes, owners[0], owners[1], "image"))


def checked_images(dataset: Dataset) -> Dataset:
    """Return the data set; raise `DataError` unless all of its images have one shape, and valid labels."""
    name, classes = dataset.name, dataset.classes
    for half, x, y, owner in (
        ("training", dataset.train_x, dataset.train_y, dataset.train_owner),
        ("test", dataset.test_x, dataset.test_y, dataset.test_owner),
    ):
        if x.dtype != np.uint8 or x.ndim != 4 or x.size == 0:
            raise DataError(f"{name}: the {half} images are {_describe(x)}, not uint8 (n, c, h, w)")
        if y.dtype != np.int64 or y.shape != x.shape[:1]:
            raise DataError(f"{name}: there are {len(x)} {half} images, but the labels are {_describe(y)}")
        low, high = y.min(), y.max()
        if low < 0 or high >= classes:
            raise DataError(f"{name}: the {half} labels range from {low} to {high}, but they must be in [0, {classes})")
        if owner is not None and (owner.dtype != np.int64 or owner.shape != y.shape or owner.min() < 0):
            raise DataError(f"{name}: the {half} owners are {_describe(owner)}, not one index per image")
    train, test = dataset.train_x.shape[1:], dataset.test_x.shape[1:]
    if train != test:
        raise DataError(f"{name}: the training images have the shape {train}, the test images the shape {test}")
    return dataset


def _describe(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}"
