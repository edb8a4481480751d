"""Checks of arguments that several modules share."""

import operator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

_Array = TypeVar("_Array", bound=npt.NDArray[np.generic])


def integer(name: str, value: object, low: int, high: int) -> int:
    """`value` as an int in `[low, high]`; numpy's integers are welcome, booleans and fractions are not."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if not low <= number <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {number}")
    return number


def frozen(array: _Array) -> _Array:
    """The array, read-only."""
    array.setflags(write=False)
    return array
