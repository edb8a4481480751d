"""The form in which every data set is used, and the check that it passes before it is used or cached."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from klms.errors import DataError

Kind = Literal["image", "text"]


@dataclass(frozen=True)
class Dataset:
    """A classification data set in memory.

    Images: `x` is uint8 `(n, channels, height, width)` and `y` is int64 `(n,)`. Text: `x` and `y` are int64 token ids
    `(n, length)`, and `y` is `x` shifted by one word. Token 0 is padding, which the loss must ignore, and token 1 is
    any word outside the vocabulary; `classes` is the size of the vocabulary, including those two. Owners are the
    indices of the examples' authors, or `None` where the authors are unknown.
    """

    name: str
    train_x: npt.NDArray[np.uint8] | npt.NDArray[np.int64]
    train_y: npt.NDArray[np.int64]
    test_x: npt.NDArray[np.uint8] | npt.NDArray[np.int64]
    test_y: npt.NDArray[np.int64]
    classes: int
    train_owner: npt.NDArray[np.int64] | None
    test_owner: npt.NDArray[np.int64] | None
    kind: Kind


def integer_labels(values: object, classes: int, origin: str) -> npt.NDArray[np.int64]:
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
    name: str,
    train: tuple[npt.NDArray[np.uint8], npt.NDArray[np.integer[Any]]],
    test: tuple[npt.NDArray[np.uint8], npt.NDArray[np.integer[Any]]],
    classes: int,
    owners: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None,
) -> Dataset:
    """A checked data set of `(images, labels)` pairs; images without a channel axis are grey."""
    (train_x, train_y), (test_x, test_y) = train, test
    dataset = Dataset(
        name=name,
        train_x=_with_channels(train_x),
        train_y=train_y.astype(np.int64),
        test_x=_with_channels(test_x),
        test_y=test_y.astype(np.int64),
        classes=classes,
        train_owner=None if owners is None else owners[0],
        test_owner=None if owners is None else owners[1],
        kind="image",
    )
    check_images(dataset)
    return dataset


def check_images(dataset: Dataset) -> None:
    """Raise `DataError` unless both halves are images of one shape, each with a label in `[0, classes)`."""
    halves = (
        ("training", dataset.train_x, dataset.train_y, dataset.train_owner),
        ("test", dataset.test_x, dataset.test_y, dataset.test_owner),
    )
    for half, x, y, owner in halves:
        if x.dtype != np.uint8 or x.ndim != 4 or x.size == 0:
            raise DataError(f"{dataset.name}: the {half} images are {_describe(x)}, not uint8 (n, c, h, w)")
        if y.dtype != np.int64 or y.shape != x.shape[:1]:
            raise DataError(f"{dataset.name}: there are {len(x)} {half} images, but the labels are {_describe(y)}")
        if y.min() < 0 or y.max() >= dataset.classes:
            raise DataError(
                f"{dataset.name}: the {half} labels range from {y.min()} to {y.max()}, but they must be in "
                f"[0, {dataset.classes})"
            )
        if owner is not None and (owner.dtype != np.int64 or owner.shape != y.shape or owner.min() < 0):
            raise DataError(f"{dataset.name}: the {half} owners are {_describe(owner)}, not one index per image")
    if dataset.train_x.shape[1:] != dataset.test_x.shape[1:]:
        raise DataError(
            f"{dataset.name}: the training images have the shape {dataset.train_x.shape[1:]}, but the test images "
            f"have the shape {dataset.test_x.shape[1:]}"
        )


def _with_channels(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return x[:, None] if x.ndim == 3 else x


def _describe(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}"
