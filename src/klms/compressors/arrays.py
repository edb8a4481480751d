"""Arrays of any library as NumPy arrays that can be sent, or an error that says what to do instead."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from klms.container import Array
from klms.errors import InvalidArgument

_INTEGERS = "pass it as integers, with .view('i8')"
_REMEDIES = {
    "c": "pass its real and its imaginary part as two arrays",
    "M": _INTEGERS,
    "m": _INTEGERS,
    "V": "pass its fields as arrays of their own, or convert it with .astype('float32')",
}
"""By NumPy's letter for a family of types."""


def arrays_of(update: object) -> dict[str, Array]:
    """Return the arrays of an update, an array or a mapping of arrays, by name; an array alone has an empty name.

    They share memory with the update where they can, and may have any strides and byte order.
    """
    if isinstance(update, list | tuple):
        raise InvalidArgument("a list of arrays has no names: pass a dictionary of arrays")
    if not isinstance(update, Mapping):
        return {"": _checked(update, "the update")}
    for name in update:
        if not isinstance(name, str):
            raise InvalidArgument(f"the names of arrays must be strings, and {name!r} is not")
    return {name: _checked(value, f"array {name!r}") for name, value in update.items()}


def _checked(value: object, what: str) -> Array:
    """Return an array of a type that can be sent."""
    if isinstance(value, Mapping):
        raise InvalidArgument(f"{what} is a dictionary itself: pass one flat dictionary of arrays")
    if np.ma.isMaskedArray(value):
        raise InvalidArgument(f"{what} is masked, and masks cannot be sent: pass array.filled(0)")
    tensor: Any = value
    try:
        if hasattr(tensor, "detach"):  # a torch tensor; NumPy has no bfloat16
            tensor = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy(force=True)
        array = np.asarray(tensor)
    except (TypeError, ValueError, RuntimeError) as error:  # an unknown type, rows of different lengths, no storage
        raise InvalidArgument(f"{what} cannot become a NumPy array, convert it first: {error}") from error
    if array.dtype.kind not in "fiub":
        remedy = _REMEDIES.get(array.dtype.kind, "only numbers can be sent")
        raise InvalidArgument(f"{what} holds {array.dtype}, which cannot be sent: {remedy}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # long double
        with np.errstate(over="ignore"):  # what is not finite is refused later
            array = array.astype(np.float64)
    return array
