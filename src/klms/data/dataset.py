"""What a data set is to the rest of the library, and the check that each one passes before it is used or cached."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from klms.data.errors import DataError

Kind = Literal["image", "text"]


@dataclass(frozen=True)
class Dataset:
    """A classification data set, in memory.

    Images: `x` is uint8 `(n, channels, height, width)`, `y` is int64 `(n,)`. Text: `x` and `y` are int64 token ids
    `(n, length)`, `y` is `x` shifted by one word, 0 is padding (the loss must ignore it) and 1 a word outside the
    vocabulary; `classes` is the size of the vocabulary, those two included. An owner is the index of the author of each
    example, where authors are known.
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


def images(
    name: str,
    train: tuple[npt.NDArray[np.uint8], npt.ArrayLike],
    test: tuple[npt.NDArray[np.uint8], npt.ArrayLike],
    classes: int,
    owners: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None,
) -> Dataset:
    """A checked data set of `(images, labels)` pairs; images without a channel axis are grey."""
    (train_x, train_y), (test_x, test_y) = train, test
    dataset = Dataset(
        name=name,
        train_x=_with_channels(train_x),
        train_y=np.asarray(train_y).astype(np.int64),
        test_x=_with_channels(test_x),
        test_y=np.asarray(test_y).astype(np.int64),
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
        ("train", dataset.train_x, dataset.train_y, dataset.train_owner),
        ("test", dataset.test_x, dataset.test_y, dataset.test_owner),
    )
    for half, x, y, owner in halves:
        if x.dtype != np.uint8 or x.ndim != 4 or x.size == 0:
            raise DataError(f"{dataset.name}: the {half} images are {_describe(x)}, not uint8 (n, c, h, w)")
        if y.dtype != np.int64 or y.shape != x.shape[:1]:
            raise DataError(f"{dataset.name}: {len(x)} {half} images, but the labels are {_describe(y)}")
        if y.min() < 0 or y.max() >= dataset.classes:
            raise DataError(
                f"{dataset.name}: {half} labels from {y.min()} to {y.max()}; they must be in [0, {dataset.classes})"
            )
        if owner is not None and (owner.dtype != np.int64 or owner.shape != y.shape or owner.min() < 0):
            raise DataError(f"{dataset.name}: the {half} owners are {_describe(owner)}, not one index an image")
    if dataset.train_x.shape[1:] != dataset.test_x.shape[1:]:
        raise DataError(
            f"{dataset.name}: training images are {dataset.train_x.shape[1:]}, test images {dataset.test_x.shape[1:]}"
        )


def _with_channels(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return x[:, None] if x.ndim == 3 else x


def _describe(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}"
