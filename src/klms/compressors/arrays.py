"""Arrays of an update, from NumPy or torch: reading them as float32 for a message, and writing decoded float32 back.

An array may be too large to copy. It is therefore read and written part by part, as consecutive entries in C order.
bfloat16, which NumPy does not have, is kept as its 16 bits, `BFLOAT16`. torch is never imported here: a program without
tensors does not need it.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from klms.container import BFLOAT16, Array, little
from klms.errors import InvalidArgument
from klms.numerics.jit import Float32

if TYPE_CHECKING:
    import torch

_INTEGERS = "pass it as integers, with .view('i8')"
_REMEDIES = {
    "c": "pass its real and its imaginary part as two arrays",
    "M": _INTEGERS,
    "m": _INTEGERS,
    "V": "pass its fields as arrays of their own, or convert it with .astype('float32')",
}
"""Advice for types that cannot be sent, by NumPy's letter for the kind of type."""


class Source(ABC):
    """An array that is to be sent."""

    dtype: np.dtype[Any]
    """Type of the array at the receiver."""
    shape: tuple[int, ...]

    @property
    def is_dense(self) -> bool:
        """Whether the array is coded with noise; other arrays are sent unchanged."""
        return is_dense(self.dtype)

    @abstractmethod
    def floats(self, start: int, stop: int) -> Float32:
        """Return the entries from `start` to `stop` as float32; numbers beyond the range of float32 become infinite."""

    @abstractmethod
    def exact(self) -> Array:
        """Return the whole array without loss, in the form in which it is sent."""


class ArraySource(Source):
    """A NumPy array with any strides and byte order, or an array of bfloat16 numbers, as their bits."""

    def __init__(self, array: Array) -> None:
        if is_bfloat16(array.dtype):
            array = array.view(BFLOAT16)
        self._array = array
        self.dtype = array.dtype
        self.shape = array.shape
        if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # long double
            self.dtype = np.dtype(np.float64)

    def floats(self, start: int, stop: int) -> Float32:
        part: Array = _entries(self._array, start, stop)
        if self.dtype == BFLOAT16:
            return floats_of_bfloat16(part)
        with np.errstate(over="ignore"):
            return part.astype(np.float32, copy=False)

    def exact(self) -> Array:
        return little(self._array)


class TensorSource(Source):
    """A torch tensor on any device."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor.detach()
        self.shape = tuple(tensor.shape)
        narrow = is_bfloat16(tensor.dtype)
        nothing = self._tensor.reshape(-1)[:0]
        self.dtype = BFLOAT16 if narrow else nothing.numpy(force=True).dtype
        if narrow:
            nothing.cpu()  # raises an error for a tensor without storage

    def floats(self, start: int, stop: int) -> Float32:
        part: Float32 = _entries(self._tensor, start, stop).float().numpy(force=True)
        return part

    def exact(self) -> Array:
        return little(self._tensor.numpy(force=True))


def _entries(array: Any, start: int, stop: int) -> Any:
    """Return consecutive entries of an array or tensor with any strides; no rows outside their range are copied.

    >>> _entries(np.arange(12).reshape(3, 4).T, 4, 8).tolist()
    [5, 9, 2, 6]
    """
    row = math.prod(array.shape[1:])
    if not array.shape or not row:
        return array.reshape(-1)[start:stop]
    first, last = start // row, -(-stop // row)
    return array[first:last].reshape(-1)[start - first * row : stop - first * row]


def sources_of(update: object) -> dict[str, Source]:
    """Return the arrays of an update by name; if the update is a single array, its name is empty."""
    if isinstance(update, list | tuple):
        raise InvalidArgument("a list of arrays has no names: pass a dictionary of arrays")
    if not isinstance(update, Mapping):
        return {"": _source(update, "the update")}
    for name in update:
        if not isinstance(name, str):
            raise InvalidArgument(f"the names of arrays must be strings, and {name!r} is not")
    return {name: _source(value, f"array {name!r}") for name, value in update.items()}


def has_tensors(update: object) -> bool:
    """Return whether an update is a torch tensor or contains one."""
    values = update.values() if isinstance(update, Mapping) else [update]
    return any(map(_is_tensor, values))


def is_dense(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of a type are coded with noise."""
    return dtype.kind == "f" or dtype == BFLOAT16


def is_bfloat16(dtype: object) -> bool:
    """Return whether a type is bfloat16, of torch or as JAX and TensorFlow add it to NumPy."""
    return getattr(dtype, "name", str(dtype)) in ("bfloat16", "torch.bfloat16")


def _is_tensor(value: object) -> bool:
    return hasattr(value, "detach")


def _source(value: object, what: str) -> Source:
    """Return the source for a value; raise an error that says what to do if its type cannot be sent."""
    if isinstance(value, Mapping):
        raise InvalidArgument(f"{what} is a dictionary itself: pass one flat dictionary of arrays")
    if np.ma.isMaskedArray(value):
        raise InvalidArgument(f"{what} is masked, and masks cannot be sent: pass array.filled(0)")
    try:
        source = TensorSource(value) if _is_tensor(value) else ArraySource(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:  # an unknown type, rows of different lengths, no storage
        raise InvalidArgument(f"{what} cannot become a NumPy array, convert it first: {error}") from error
    narrow = source.dtype == BFLOAT16 and is_bfloat16(getattr(value, "dtype", None))
    if source.dtype.kind not in "fiub" and not narrow:
        remedy = _REMEDIES.get(source.dtype.kind, "only numbers can be sent")
        raise InvalidArgument(f"{what} holds {source.dtype}, which cannot be sent: {remedy}")
    return source


def put(array: Array, start: int, floats: Float32) -> None:
    """Set consecutive entries of a contiguous array, clipped to the range of its type."""
    part = array.reshape(-1)[start : start + floats.size]
    if array.dtype == BFLOAT16:
        part[:] = bfloat16_of(floats)
    elif array.dtype.itemsize < floats.itemsize:
        largest = float(np.finfo(array.dtype).max)
        part[:] = np.clip(floats, -largest, largest)
    else:
        part[:] = floats


def floats_of_bfloat16(array: Array) -> Float32:
    """Return float32 numbers, given the bits of bfloat16 numbers.

    >>> floats_of_bfloat16(bfloat16_of(np.array([1.0, -2.5, 3.1415927], dtype=np.float32))).tolist()
    [1.0, -2.5, 3.140625]
    """
    return (np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def bfloat16_of(floats: Float32) -> npt.NDArray[Any]:
    """Return the bits of the bfloat16 numbers nearest to the given finite numbers; ties are rounded to even."""
    bits = np.ascontiguousarray(floats).view(np.uint32)
    to_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + to_even) >> np.uint32(16)).astype(np.uint16).view(BFLOAT16)


def loaded_torch() -> Any:
    """Return torch if the program has imported it, else None."""
    return sys.modules.get("torch")


def as_tensor(array: Array) -> "torch.Tensor":
    """Return an array as a tensor that shares its memory; the program must have imported torch."""
    loaded = loaded_torch()
    if array.dtype == BFLOAT16:
        tensor: torch.Tensor = loaded.from_numpy(array.view(np.int16)).view(loaded.bfloat16)
    else:
        tensor = loaded.from_numpy(array)
    return tensor
