"""Examples as arrays, and the order in which a client trains on them. Nothing here needs torch."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from klms.errors import DataError

T = TypeVar("T")
U = TypeVar("U")
Optimizer = Literal["sgd", "momentum", "adam"]


Array = npt.NDArray[np.generic]
Inputs = Array | Mapping[str, Array]
"""Inputs of a model: one array, or arrays by name, which become its keyword arguments."""
LABELS = ("labels", "label")
"""Names of the column that holds the labels, where columns have names."""


def each(x: T | Mapping[str, T], function: Callable[[T], U]) -> U | Mapping[str, U]:
    """Apply a function to the inputs of a model: to the array, or to each of the named arrays."""
    if isinstance(x, Mapping):
        return {name: function(column) for name, column in x.items()}
    return function(x)


@dataclass(frozen=True)
class Examples:
    """Inputs `x` and labels `y`, one row per example. Inputs of dtype uint8 are images, scaled to [-1, 1] for use."""

    x: Inputs
    y: Array

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: slice | npt.NDArray[np.int64]) -> "Examples":
        """Return some of the examples."""
        return Examples(each(self.x, lambda array: array[index]), self.y[index])

    def batches(self, size: int) -> Iterator["Examples"]:
        """Yield all examples in even batches of at most `size`.

        A last batch of one example would be too small for normalisation layers.
        """
        for index in np.array_split(np.arange(len(self)), math.ceil(len(self) / size)):
            yield self.rows(slice(index[0], index[-1] + 1))


def joined(parts: Sequence[Examples]) -> Examples:
    """Return the examples of all parts, one part after the other."""
    y = np.concatenate([part.y for part in parts])
    named = [part.x if isinstance(part.x, Mapping) else {"": part.x} for part in parts]
    x = {name: np.concatenate([columns[name] for columns in named]) for name in named[0]}
    return Examples(x.get("", x), y)


def mixed_batches(parts: Sequence[Examples], size: int) -> Iterator[Examples]:
    """Yield all examples in batches of about `size`, each with a share of every part."""
    count = math.ceil(sum(map(len, parts)) / size)
    for batch in range(count):
        # Parts begin at different places, so that even parts of one example are spread over the batches.
        shares = [part.rows(slice((batch + place) % count, None, count)) for place, part in enumerate(parts)]
        yield joined([share for share in shares if len(share)])


@dataclass(frozen=True)
class Schedule:
    """Local epochs, batch size and optimizer of a client."""

    epochs: int
    batch: int
    lr: float
    optimizer: Optimizer

    def batches(self, n: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the indices of shuffled batches, without a last batch of one example.

        Such a batch would be too small for normalisation layers.
        """
        for _ in range(self.epochs):
            order = rng.permutation(n)
            for start in range(0, n, self.batch):
                chosen = order[start : start + self.batch]
                if chosen.size > 1 or n == 1 or self.batch == 1:
                    yield chosen


def examples_from(data: Any) -> Examples:
    """Convert pairs or named columns, given as arrays, tensors or a torch-style data set, to `Examples`.

    A pair is `(x, y)`; `x` may be a dictionary of arrays. Named columns are a dictionary with the labels under `labels`
    or `label`. A data set is any sequence whose items are pairs or dictionaries of a single example each; it is read
    once, into memory.

    Floating-point numbers become float32, and integers int64. Bytes (uint8) remain bytes if they are images: at least
    two dimensions per example in a plain `x`, and at least three in a named column, where two may be an attention mask.
    Other bytes are taken as numbers: float32 in a plain `x`, as dense layers need, and int64 in a named column.

    >>> examples_from(([[0.0, 1.0], [2.0, 3.0]], [0, 1])).x.dtype
    dtype('float32')
    >>> items = [{"input_ids": [4, 5], "label": 0}, {"input_ids": [6, 7], "label": 1}]
    >>> examples_from(items).x["input_ids"].shape, examples_from(items).y.tolist()
    ((2, 2), [0, 1])
    """
    if isinstance(data, Examples):
        return data
    try:
        x, y = _inputs_and_labels(data)
        inputs = {name: _column(name, values) for name, values in x.items()} if isinstance(x, Mapping) else _plain(x)
        labels = _array(y)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise DataError(
            f"a {type(data).__name__} cannot be read as examples ({error}): give a pair (x, y) of arrays or tensors, "
            "or a data set whose items are such pairs, or dictionaries with labels"
        ) from error
    for array in inputs.values() if isinstance(inputs, dict) else [inputs]:
        if len(array) == 0 or len(array) != len(labels):
            counts = f"{len(array)} inputs and {len(labels)} labels"
            raise DataError(f"{counts}: both numbers must be the same, and at least 1")
    return Examples(inputs, labels)


def _inputs_and_labels(data: Any) -> tuple[Any, Any]:
    if isinstance(data, tuple) and len(data) == 2:
        x, y = data
        return x, y
    if hasattr(data, "tensors"):
        x, y = data.tensors
        return x, y
    columns = data
    if not isinstance(data, Mapping):
        items = [data[index] for index in range(len(data))]
        if not items:
            raise ValueError("it is empty")
        if not isinstance(items[0], Mapping):
            return _stacked([one for one, _ in items]), _stacked([label for _, label in items])
        columns = _stacked(items)
    names = [name for name in LABELS if name in columns]
    if not names:
        raise ValueError(f"none of its columns {', '.join(columns)} is called {' or '.join(LABELS)}")
    return {name: column for name, column in columns.items() if name != names[0]}, columns[names[0]]


def _stacked(items: Sequence[Any]) -> Any:
    """Return the items stacked as the rows of an array; items that are dictionaries, as one array per name."""
    if isinstance(items[0], Mapping):
        return {name: _stacked([item[name] for item in items]) for name in items[0]}
    arrays = [_numpy(item) for item in items]
    if len(shapes := {array.shape for array in arrays}) > 1:
        some = " and ".join(map(str, sorted(shapes)[:2]))
        raise ValueError(f"its items have shapes {some}; make them equal, for instance by padding")
    return np.stack(arrays)


def _numpy(values: Any) -> Array:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _plain(values: Any) -> Array:
    """Return inputs without a name as an array. Images stay unchanged."""
    array = _numpy(values)
    if array.dtype != np.uint8:
        return _array(array)
    return array if array.ndim > 2 else array.astype(np.float32)


def _column(name: str, values: Any) -> Array:
    """Return a column as an array. Images stay unchanged, and so do booleans, since a column may be a mask."""
    array = _numpy(values)
    if array.dtype == np.bool_ or (array.dtype == np.uint8 and array.ndim > 3):
        return array
    try:
        return _array(array)
    except ValueError as error:
        raise ValueError(f"column {name!r}: {error}; leave it out") from error


def _array(values: Any) -> Array:
    """Return the values with a dtype that torch trains with: float32 or int64."""
    array = _numpy(values)
    if array.dtype.kind not in "fbiu":
        raise ValueError(f"dtype {array.dtype} is not numeric")
    return array.astype(np.float32 if array.dtype.kind in "fb" else np.int64, copy=False)
