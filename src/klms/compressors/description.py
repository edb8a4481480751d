"""What a message of `klms.compress` says of its arrays: names, shapes and types, as JSON, deflated.

The limits of the reader are the limits of the writer, which reads what it wrote before it sends anything.
"""

import json
import math
import zlib
from typing import Any, NamedTuple

import numpy as np

from klms.errors import CorruptMessage, InvalidArgument
from klms.numerics.checks import checked_shape

MOST_TEXT = 1 << 20
"""Bytes of the JSON text: tens of thousands of arrays, which a reader takes a fraction of a second for."""
MOST_PARAMETERS = (1 << 32) - 1
"""Floating-point entries of all arrays: the envelope has four bytes for their number."""

BFLOAT16 = "bfloat16"
TYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in ("<f2", "<f4", "<f8", "|b1", "|i1", "|u1")},
    **{name: np.dtype(name) for name in ("<i2", "<u2", "<i4", "<u4", "<i8", "<u8")},
    BFLOAT16: np.dtype("<f4"),  # NumPy has no such type: these arrays come back as float32
}
"""The types that can be sent, by their names in the description."""

_WORKING = np.dtype("<f4")  # what all floating-point numbers are decoded as first
_PARTS: dict[str, Any] = {"shapes": None, "types": None, "names": [""]}
_LONGEST = 80  # characters of a name that are shown


class Described(NamedTuple):
    """What the message says of an array."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether the array is coded with noise; others are sent unchanged."""
        return TYPES[self.kind].kind == "f"

    @property
    def memory(self) -> int:
        """Bytes that the decoded array takes, or that its numbers take before they get their type."""
        itemsize = TYPES[self.kind].itemsize
        return self.size * (max(itemsize, _WORKING.itemsize) if self.is_dense else itemsize)

    def __str__(self) -> str:
        name = self.name if len(self.name) <= _LONGEST else self.name[:_LONGEST] + "..."
        return f"{name!r} of type {self.kind} and shape {self.shape}"


class Description(NamedTuple):
    """What the message says of all arrays; one that was not in a dictionary has no name."""

    arrays: list[Described]
    named: bool

    @property
    def parameters(self) -> int:
        return sum(one.size for one in self.arrays)

    @property
    def memory(self) -> int:
        return sum(one.memory for one in self.arrays)


def write_description(described: Description) -> bytes:
    """Return the description as bytes; raise `InvalidArgument` if `read_description` would not return it."""
    parts: dict[str, object] = {
        "shapes": [one.shape for one in described.arrays],
        "types": [one.kind for one in described.arrays],
    }
    if described.named:
        parts["names"] = [one.name for one in described.arrays]
    text = json.dumps(parts, separators=(",", ":")).encode()
    try:
        understood = _parsed(text) == described
    except CorruptMessage as error:
        raise InvalidArgument(f"the update cannot be sent: {error}") from error
    if not understood:
        raise InvalidArgument("the update cannot be sent: a name is not Unicode")  # two halves of a surrogate pair
    return zlib.compress(text, 9)


def read_description(packed: bytes) -> Description:
    """Return the description in untrusted bytes."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(packed, MOST_TEXT + 1)
    except zlib.error as error:
        raise CorruptMessage("the description does not decode") from error
    if len(text) <= MOST_TEXT and (not inflater.eof or inflater.unused_data):
        raise CorruptMessage("the description is cut off, or more follows it")
    return _parsed(text)


def _parsed(text: bytes) -> Description:
    if len(text) > MOST_TEXT:
        raise CorruptMessage(
            f"names, shapes and types take more than {MOST_TEXT:,} bytes: use shorter names, or several messages"
        )
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptMessage("the description does not decode") from error
    if not isinstance(parts, dict):
        raise CorruptMessage("the description makes no sense")
    shapes, kinds, names = (parts.get(part, absent) for part, absent in _PARTS.items())
    if not all(isinstance(part, list) for part in (shapes, kinds, names)) or not len(shapes) == len(kinds) == len(
        names
    ):
        raise CorruptMessage("the description makes no sense")
    if not all(map(_is_name, names)) or len(set(names)) != len(names):
        raise CorruptMessage("the names of arrays are not different strings of Unicode")
    if not all(isinstance(kind, str) and kind in TYPES for kind in kinds):
        raise CorruptMessage("an array has an unknown type")
    described = Description(list(map(Described, names, map(checked_shape, shapes), kinds)), "names" in parts)
    if sum(one.size for one in described.arrays if one.is_dense) > MOST_PARAMETERS:
        raise CorruptMessage(f"there are more than {MOST_PARAMETERS:,} parameters: use several messages")
    return described


def _is_name(name: object) -> bool:
    """Return whether this is a string without halves of surrogate pairs, which nobody could print."""
    try:
        return isinstance(name, str) and name.encode() is not None
    except UnicodeEncodeError:
        return False
