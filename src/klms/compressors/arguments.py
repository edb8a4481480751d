"""Checks of what a program passes to klms: numbers, bytes, and dictionaries of arrays."""

import math
from collections.abc import Mapping
from numbers import Real

import numpy as np

from klms.compressors.arrays import is_bfloat16, sources_of
from klms.compressors.base import largest_entry
from klms.container import Array
from klms.errors import InvalidArgument

_SENDABLE = "fiub"
_COMPLEX = "pass its real and its imaginary part as two arrays"


def number(name: str, value: object) -> float:
    """Return `value` as a float; raise an error unless it is a Python or NumPy number.

    >>> number("bits_per_parameter", np.float32(0.5))
    0.5
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidArgument(f"{name} must be a number, got {value!r}")
    return float(value)


def message_bytes(what: str, value: object) -> bytes:
    """Return `value` as bytes; raise an error for anything else, such as text or the path of a file."""
    if not isinstance(value, bytes | bytearray | memoryview):
        kind = type(value).__name__
        raise InvalidArgument(f"{what} must be bytes, got {kind}: read a file with open(path, 'rb').read()")
    return bytes(value)


def named_arrays(what: str, value: object, *, copy: bool = False) -> dict[str, Array]:
    """Return a dictionary of arrays as NumPy arrays, with float32 in place of bfloat16.

    For anything else, raise an error that says what to do.
    """
    if not isinstance(value, Mapping):
        remedy = "pass its state_dict()" if hasattr(value, "state_dict") else "pass {name: array, ...}"
        raise InvalidArgument(f"{what}: a dictionary of arrays is expected, got {type(value).__name__}: {remedy}")
    return {_name(name): _array(name, one, copy=copy) for name, one in value.items()}


def check_model(arrays: Mapping[str, Array]) -> None:
    """Raise an error that names the first array that cannot be sent or is not finite, if there is one."""
    for name, array in arrays.items():
        if array.dtype.kind not in _SENDABLE:
            remedy = _COMPLEX if array.dtype.kind == "c" else "only numbers can be sent"
            raise InvalidArgument(f"array {name!r} holds {array.dtype}, which cannot be sent: {remedy}")
        if array.dtype.kind == "f" and not math.isfinite(largest_entry(array)):
            raise InvalidArgument(
                f"array {name!r} has entries that are infinite or not a number: training diverged; leave out the "
                "clients whose arrays are not finite, or lower the learning rate"
            )


def like_held(arrays: Mapping[str, Array], held: Mapping[str, Array]) -> dict[str, Array]:
    """Return the next model with its arrays in the order of the held model.

    Arrays of integers become floating-point if the held array is floating-point. Raise an error that names the array if
    a name or a shape differs.
    """
    remedy = "give all arrays of the model with their shapes, and make a new server for another model"
    for name in [*held, *arrays]:
        if name not in arrays:
            raise InvalidArgument(f"array {name!r} of the server's model is missing: {remedy}")
        if name not in held:
            raise InvalidArgument(f"the server's model has no array {name!r}: {remedy}")
        if arrays[name].shape != held[name].shape:
            raise InvalidArgument(
                f"array {name!r} has shape {arrays[name].shape}, and {held[name].shape} in the server's model: {remedy}"
            )
    return {name: _as_held(arrays[name], own) for name, own in held.items()}


def _as_held(array: Array, held: Array) -> Array:
    if held.dtype.kind != "f" or array.dtype.kind not in "iub":
        return array
    with np.errstate(over="ignore"):
        return array.astype(held.dtype)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"the names of arrays must be strings, and {name!r} is not")
    return name


def _array(name: str, value: object, *, copy: bool) -> Array:
    try:
        if is_bfloat16(getattr(value, "dtype", None)):
            source = sources_of(value)[""]
            return source.floats(0, math.prod(source.shape)).reshape(source.shape)
        array = np.array(value) if copy else np.asarray(value)
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different lengths, tensors on another device
        raise InvalidArgument(f"array {name!r} cannot become a NumPy array, convert it first: {error}") from error
