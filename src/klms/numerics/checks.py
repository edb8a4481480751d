"""Argument checks that several modules share."""

import operator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from klms.errors import InvalidArgument

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


def frozen(array: _Array) -> _Array:
    """Make the array read-only and return it."""
    array.setflags(write=False)
    return array
