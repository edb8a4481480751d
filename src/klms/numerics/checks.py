"""Argument checks that several modules share."""

import difflib
import operator
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from klms.errors import CorruptMessage, InvalidArgument

MOST_DIMENSIONS, MOST_ENTRIES = 32, 1 << 40  # limits for arrays from untrusted sources
OTHER_NAMES = {"learning_rate": "lr", "batch_size": "batch", "bits_per_parameter": "rate"}
"""Settings by the names that they have in other libraries, or in other parts of klms."""
_MOST_THREADS = 1024
_Array = TypeVar("_Array", bound=npt.NDArray[np.generic])


def integer(name: str, value: object, low: int, high: int) -> int:
    """Return `value` as an int in `[low, high]`. NumPy integers are accepted; booleans and fractions are not."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, (bool, np.bool_)):
        raise InvalidArgument(f"{name} must be an integer, got {value!r}")
    if not low <= number <= high:
        raise InvalidArgument(f"{name} must be in [{low}, {high}], got {number}")
    return number


def thread_count(value: object) -> int | None:
    """Return the number of threads that a caller allows; None stands for one per core."""
    return None if value is None else integer("threads", value, 1, _MOST_THREADS)


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Raise an `InvalidArgument` that suggests the most similar name unless `name` is known."""
    known = list(known)
    if name not in known:
        raise InvalidArgument(f"there is no {what} {name!r}; {suggestion(name, known)}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the most similar known name, or all of them, as advice for an error message."""
    known = list(known)
    near = [OTHER_NAMES[name]] if OTHER_NAMES.get(name) in known else difflib.get_close_matches(name, known, n=1)
    if not known:
        return "there are none"
    return f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}"


def checked_shape(shape: object) -> tuple[int, ...]:
    """Return an untrusted shape; raise `CorruptMessage` if NumPy would refuse it or it has too many entries.

    A length of 0 counts as 1.

    >>> checked_shape([2, 0, 3])
    (2, 0, 3)
    """
    if not isinstance(shape, (list, tuple)):
        raise CorruptMessage("a shape is not a list of numbers")
    if len(shape) > MOST_DIMENSIONS:
        raise CorruptMessage(f"a shape has {len(shape)} dimensions; arrays have at most {MOST_DIMENSIONS}")
    size = 1
    for length in shape:
        if type(length) is not int or length < 0:
            raise CorruptMessage("a shape is not a list of numbers")
        size *= max(length, 1)
        if size > MOST_ENTRIES:  # NumPy refuses such a shape even if a length is 0
            raise CorruptMessage(f"a shape has more than {MOST_ENTRIES:,} entries")
    return tuple(shape)


def frozen(array: _Array) -> _Array:
    """Make the array read-only and return it."""
    array.setflags(write=False)
    return array
