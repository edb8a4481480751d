"""Any update as bytes, and back: two functions for programs that have their own engine.

A message is a `Frame` of kind `UPDATE`, whose numbers are the round of the key and 0, and whose digest is that of the
key. Its body is a container without the floating-point arrays, which are only described; what stands for all of them
follows, a message of the scheme `trellis`.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from klms.codec import SharedKey
from klms.compressors.arrays import arrays_of
from klms.compressors.base import check_update
from klms.compressors.layout import Layout
from klms.compressors.trellis import MAX_RATE, MIN_RATE, Effort, Trellis
from klms.container import Array, ArrayInfo, Description, describe, little, read_array, read_description
from klms.errors import CorruptMessage, InvalidArgument, SideInformationMismatch
from klms.frame import OVERHEAD, Frame, Kind
from klms.numerics.jit import Float32
from klms.numerics.parallel import Progress
from klms.progress import reporting

FREE_BYTES = 1 << 28
"""What the arrays of any message may take in memory: 67 million float32 parameters, which may all be zero."""
BYTES_PER_BYTE = 1 << 10
"""What each byte of a message may take on top: a float32 parameter at a 32nd of a bit."""
MOST_PARAMETERS = (1 << 32) - 1
"""Floating-point entries of all arrays: the envelope has four bytes for their number."""

_ALONE = "array"
"""Beside the description of an array that was not in a dictionary."""


def compress(
    update: object,
    bits_per_parameter: float = 1.0,
    *,
    key: SharedKey,
    effort: Effort = "balanced",
    threads: int | None = None,
    rng: np.random.Generator | None = None,
    progress: Progress | bool = False,
) -> bytes:
    """Return an update as bytes: an array or a mapping of arrays (NumPy or torch), such as a difference of state dicts.

    What `decompress` returns is the update plus noise whose mean is zero; `bits_per_parameter`, from 0.0001 to 8,
    counts the whole message, up to half of it for names and shapes (many tiny arrays may take more). Arrays of integers
    and truth values are sent unchanged, on top; those of bfloat16 come back as float32, those of float16 within its
    range, those of long double as float64. Complex numbers, dates, text, objects and masked arrays are refused. No two
    messages may share a `key`. Rounding takes its randomness from `rng`, by default from the operating system.
    `progress` is a function that is called with the steps done and their number; True draws a bar on a terminal.

    >>> update = {"weight": np.ones((40, 50), dtype=np.float32), "steps": np.array(7)}
    >>> message = compress(update, 2.0, key=SharedKey(seed=1, round=1, client=0))
    >>> len(message) < 2000 * 2 / 8 + 8
    True
    >>> decoded = decompress(message, key=SharedKey(seed=1, round=1, client=0))
    >>> decoded["weight"].shape, int(decoded["steps"])
    ((40, 50), 7)
    """
    digest = _digest(key)
    arrays = arrays_of(update)
    description = describe(arrays, None if isinstance(update, Mapping) else _ALONE)
    parts = [description, *(little(array).tobytes() for array in arrays.values() if array.dtype.kind != "f")]
    dense = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    layout = Layout(tuple(dense), tuple(array.shape for array in dense.values()))
    if layout.d > MOST_PARAMETERS:
        raise InvalidArgument(f"there are more than {MOST_PARAMETERS:,} parameters: use several messages")
    if layout.d:
        rate = _rate(bits_per_parameter, 8 * (OVERHEAD + len(description)) / layout.d)
        with np.errstate(over="ignore"):  # what is not finite is refused
            vector = np.concatenate([array.astype(np.float32, copy=False).ravel() for array in dense.values()])
        check_update(vector, layout.d, bits_per_parameter)
        with reporting(progress, "compressing") as report:
            scheme = Trellis(layout, rate, effort, threads, progress=report)
            parts.append(scheme.encode(vector, {}, key=key, rng=rng or np.random.default_rng()))
    return Frame(Kind.UPDATE, key.round, 0, digest, b"".join(parts)).to_bytes()


def decompress(
    message: bytes,
    *,
    key: SharedKey,
    like: object = None,
    max_bytes: int | None = None,
    threads: int | None = None,
    progress: Progress | bool = False,
) -> Array | dict[str, Array]:
    """Return what `compress` was given, up to its noise, as NumPy arrays; raise a `KLMSError` on any other bytes.

    A few bytes can stand for many zeros. A message from a stranger is therefore best compared with what is expected:
    `like` is an update (or a model) with the same names, shapes and types, and any other message is refused. Without
    it, a message whose arrays take more than `max_bytes` is refused, by default 256 MiB and 1024 times the length of
    the message. Both are looked at before anything is allocated; decoding takes up to twice what the arrays take.
    `progress` is as in `compress`.
    """
    frame, described = inspect_update(message)
    if frame.digest != _digest(key):
        raise SideInformationMismatch("the message was made with another key")
    if like is not None:
        _check_expected(described, like)
    elif max_bytes is None:
        max_bytes = FREE_BYTES + BYTES_PER_BYTE * len(message)
    if max_bytes is not None:
        _check_memory(described, max_bytes)
    exact, rest = _read_exact(described, frame.body)
    dense = [one for one in described.arrays if one.name not in exact]
    layout = Layout(tuple(one.name for one in dense), tuple(one.shape for one in dense))
    vector = np.zeros(0, dtype=np.float32)
    if layout.d:
        with reporting(progress, "decompressing") as report:
            scheme = Trellis(layout, threads=threads, agreed=False, progress=report)
            vector = np.asarray(scheme.decode(rest, {}, key=key).vector, dtype=np.float32)
    elif rest:
        raise CorruptMessage("there is more in the message than its arrays")
    coded = dict(layout.split(vector))
    arrays = {
        one.name: exact[one.name] if one.name in exact else _typed(coded[one.name], one.dtype)
        for one in described.arrays
    }
    return arrays[""] if described.meta == _ALONE else arrays


def inspect_update(message: bytes) -> tuple[Frame, Description]:
    """Return the frame of a message, and what it says of its arrays; the key is not needed."""
    frame = Frame.from_bytes(message, Kind.UPDATE)
    described = read_description(frame.body)
    if described.meta == _ALONE and [one.name for one in described.arrays] != [""]:
        raise CorruptMessage("the message holds one array without a name, and others")
    return frame, described


def _rate(bits_per_parameter: float, overhead: float) -> float:
    """Return what the description and the frame, of so many bits per parameter, leave of the whole; at least half."""
    if not MIN_RATE <= bits_per_parameter <= MAX_RATE:
        raise InvalidArgument(f"bits_per_parameter must be from {MIN_RATE:g} to {MAX_RATE:g}, got {bits_per_parameter}")
    return max(bits_per_parameter - min(overhead, bits_per_parameter / 2), MIN_RATE)


def _check_expected(described: Description, like: object) -> None:
    """Raise unless the message holds arrays with the names, shapes and types of those in `like`."""
    expected = read_description(describe(arrays_of(like))).arrays
    if (described.meta == _ALONE) == isinstance(like, Mapping):
        raise SideInformationMismatch("the message holds an array and `like` a dictionary of arrays, or the reverse")
    for one in sorted(set(described.arrays) ^ set(expected), key=str):
        where = "in the message only" if one in described.arrays else "in `like` only"
        raise SideInformationMismatch(f"the message holds other arrays than expected: {one} is {where}")


def _check_memory(described: Description, most: int) -> None:
    # Floating-point numbers are decoded as float32 before they get their type.
    needed = sum(one.entries * max(one.dtype.itemsize, 4 if _is_dense(one) else 1) for one in described.arrays)
    if needed > most:
        raise InvalidArgument(
            f"the message is for arrays of {needed:,} bytes, and {most:,} are allowed: pass like= (an update "
            "with the shapes that you expect) or a larger max_bytes= if that is right"
        )


def _is_dense(one: ArrayInfo) -> bool:
    """Return whether an array is coded with noise; others are sent unchanged."""
    return one.dtype.kind == "f"


def _read_exact(described: Description, body: bytes) -> tuple[dict[str, Array], bytes]:
    """Return the arrays that were sent unchanged, and the bytes after them."""
    exact: dict[str, Array] = {}
    place = described.end
    for one in described.arrays:
        if not _is_dense(one):
            if len(body) - place < one.nbytes:
                raise CorruptMessage("the arrays are cut off")
            exact[one.name] = read_array(one, body[place : place + one.nbytes]).copy()
            place += one.nbytes
    return exact, body[place:]


def _typed(array: Float32, dtype: np.dtype[Any]) -> Array:
    """Return a copy of an array as another type, within the range of that."""
    if dtype.itemsize < array.itemsize:
        largest = float(np.finfo(dtype).max)
        array = np.asarray(np.clip(array, -largest, largest))
    return array.astype(dtype)


def _digest(key: SharedKey) -> bytes:
    return blake2b(SharedKey.checked(key).to_bytes(), digest_size=8, person=b"klms key").digest()
