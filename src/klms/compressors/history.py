"""What the last global update says of the next: where it was large, an update tends to be large again.

Server and clients that hold the last global update sort the entries of an update by its magnitude, at no byte, before
the update is cut into pieces: rates can then follow. Only a class of the magnitude counts, two to an octave, taken from
the bits of a float32, so that both sides have the same order on every machine.
"""

import zlib

import numpy as np
import numpy.typing as npt

from klms.compressors.base import Side
from klms.numerics.jit import Float32, Int64, UInt8, kernel

HISTORY = "history"
"""Name of the classes in the side information of a scheme that uses them if they are there."""

_CLASSES = 256
_MANTISSA = 22  # bits of a float32 below the first of its fraction
_SMALLEST = 2 * (127 - 100)  # of 2^-100: what is smaller counts as zero


def history(step: npt.NDArray[np.floating]) -> Side:
    """Return the classes of the last global update, as side information.

    >>> history(np.array([0.0, 1.0, -1.4, 1.5, 2.0], dtype=np.float32))[HISTORY].tolist()
    [0, 200, 200, 201, 202]
    """
    numbers = np.abs(np.ravel(step), dtype=np.float32).view(np.int32)
    numbers >>= _MANTISSA
    numbers -= _SMALLEST
    return {HISTORY: np.clip(numbers, 0, _CLASSES - 1, out=numbers).astype(np.uint8)}


def tag(classes: UInt8) -> bytes:
    """Return four bytes that differ when the classes do, for both sides to agree on."""
    return zlib.crc32(classes.data).to_bytes(4, "little")


@kernel
def move(vector: Float32, parts: Int64, classes: UInt8, ordered: Float32, backward: bool) -> None:
    """Write the parts of a vector by falling class, those of one class in their order; or undo it."""
    places = np.zeros(_CLASSES + 1, dtype=np.int64)
    for n in range(parts.shape[0]):
        for i in range(parts[n, 0], parts[n, 1]):
            places[_CLASSES - int(classes[i])] += 1
    for number in range(_CLASSES):
        places[number + 1] += places[number]
    for n in range(parts.shape[0]):
        for i in range(parts[n, 0], parts[n, 1]):
            place = places[_CLASSES - 1 - int(classes[i])]
            places[_CLASSES - 1 - int(classes[i])] += 1
            if backward:
                vector[i] = ordered[place]
            else:
                ordered[place] = vector[i]
