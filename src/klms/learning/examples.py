"""Examples as arrays, and how a client goes through them. Nothing here needs torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from klms.errors import DataError

Optimizer = Literal["sgd", "momentum", "adam"]


@dataclass(frozen=True)
class Examples:
    """Inputs `x` and labels `y`, one row per example. Inputs of dtype uint8 are images, scaled to [-1, 1] for use."""

    x: npt.NDArray[np.generic]
    y: npt.NDArray[np.generic]

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Schedule:
    """Local epochs, batch size and optimizer of a client."""

    epochs: int
    batch: int
    lr: float
    optimizer: Optimizer

    def batches(self, n: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the indices of shuffled batches; a final batch of one is dropped, since norms cannot use it."""
        for _ in range(self.epochs):
            order = rng.permutation(n)
            for start in range(0, n, self.batch):
                chosen = order[start : start + self.batch]
                if chosen.size > 1 or n == 1:
                    yield chosen


def examples_from(data: Any) -> Examples:
    """Return as `Examples` what users hold: a pair `(x, y)` of arrays or tensors, or a torch-style data set.

    A data set is anything with a length whose items are pairs; it is read once, into memory.

    >>> examples_from(([[0.0, 1.0], [2.0, 3.0]], [0, 1])).x.dtype
    dtype('float32')
    """
    if isinstance(data, Examples):
        return data
    try:
        if isinstance(data, tuple) and len(data) == 2:
            x, y = data
        elif hasattr(data, "tensors"):
            x, y = data.tensors
        else:
            pairs = [data[index] for index in range(len(data))]
            x, y = [np.asarray(one) for one, _ in pairs], [np.asarray(label) for _, label in pairs]
        x, y = _array(x), _array(y)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise DataError(
            f"a {type(data).__name__} cannot be read as examples ({error}): give a pair (x, y) of arrays or tensors, "
            "or a data set whose items are such pairs"
        ) from error
    if len(x) == 0 or len(x) != len(y):
        raise DataError(f"{len(x)} inputs and {len(y)} labels: there must be as many of both, and at least one")
    return Examples(x, y.astype(np.int64) if y.dtype == np.uint8 else y)  # labels are no images


def _array(values: Any) -> npt.NDArray[np.generic]:
    """Return the values with a dtype that torch trains with: float32, int64, or uint8 for images."""
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.dtype.kind not in "fbiu":
        raise ValueError(f"dtype {array.dtype} is not numeric")
    if array.dtype == np.uint8:
        return array
    return array.astype(np.float32 if array.dtype.kind in "fb" else np.int64, copy=False)
