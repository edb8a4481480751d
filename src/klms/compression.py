"""Any update as bytes, and back: two functions for programs that have their own engine.

The message describes itself. After the magic bytes `KU` come a version (u8), a tag of the key (4 bytes), the length of
the description (u32) and the description: names, shapes and types of all arrays as JSON, deflated. Then follow, as they
are, arrays of other than floating-point numbers, and, at last, a message of the scheme `trellis` for all others.
"""

import struct
from hashlib import blake2b
from typing import Any

import numpy as np

from klms.codec import SharedKey
from klms.compressors.arrays import Array, arrays_of
from klms.compressors.base import check_update
from klms.compressors.description import TYPES, Described, Description, read_description, write_description
from klms.compressors.layout import Layout
from klms.compressors.trellis import MAX_RATE, MIN_RATE, Effort, Trellis
from klms.errors import CorruptMessage, InvalidArgument, SideInformationMismatch, UnsupportedMessage
from klms.numerics.jit import Float32
from klms.numerics.parallel import Progress
from klms.progress import reporting

MAGIC = b"KU"
VERSION = 1
FREE_BYTES = 1 << 28
"""What the arrays of any message may take in memory: 67 million float32 parameters, which may all be zero."""
BYTES_PER_BYTE = 1 << 10
"""What each byte of a message may take on top: a float32 parameter at a 32nd of a bit."""

_HEAD = struct.Struct("<2sB4sI")


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
    arrays, described = arrays_of(update)
    description = write_description(described)
    pairs = list(zip(described.arrays, arrays, strict=True))
    dense = [array for one, array in pairs if one.is_dense]
    layout = _layout([one for one in described.arrays if one.is_dense])
    head = _HEAD.pack(MAGIC, VERSION, _tag(key), len(description)) + description
    head += b"".join(array.astype(TYPES[one.kind], copy=False).tobytes() for one, array in pairs if not one.is_dense)
    if not layout.d:
        return head
    if not MIN_RATE <= bits_per_parameter <= MAX_RATE:
        raise InvalidArgument(f"bits_per_parameter must be from {MIN_RATE:g} to {MAX_RATE:g}, got {bits_per_parameter}")
    overhead = min(8 * (_HEAD.size + len(description)) / layout.d, bits_per_parameter / 2)
    rate = max(bits_per_parameter - overhead, MIN_RATE)
    with np.errstate(over="ignore"):  # what is not finite is refused
        vector = np.concatenate([array.astype(np.float32, copy=False).ravel() for array in dense])
    check_update(vector, layout.d, bits_per_parameter)
    with reporting(progress, "compressing") as report:
        scheme = Trellis(layout, rate, effort, threads, progress=report)
        return head + scheme.encode(vector, {}, key=key, rng=rng or np.random.default_rng())


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
    tag, described, place = describe(message)
    if tag != _tag(key):
        raise SideInformationMismatch("the message was made with another key")
    if like is not None:
        _check_expected(described, like)
    elif max_bytes is None:
        max_bytes = FREE_BYTES + BYTES_PER_BYTE * len(message)
    if max_bytes is not None:
        _check_memory(described, max_bytes)
    arrays: dict[str, Array] = dict.fromkeys([one.name for one in described.arrays], np.empty(0))  # keeps the order
    for one in described.arrays:
        if not one.is_dense:
            if len(message) - place < one.memory:
                raise CorruptMessage("the arrays are cut off")
            arrays[one.name] = _unchanged(one, message[place : place + one.memory])
            place += one.memory
    dense = [one for one in described.arrays if one.is_dense]
    layout = _layout(dense)
    vector = np.zeros(0, dtype=np.float32)
    if layout.d:
        with reporting(progress, "decompressing") as report:
            decoded = Trellis(layout, threads=threads, agreed=False, progress=report).decode(
                message[place:], {}, key=key
            )
        vector = np.asarray(decoded.vector, dtype=np.float32)
    elif place != len(message):
        raise CorruptMessage("there is more in the message than its arrays")
    for one, (_, array) in zip(dense, layout.split(vector), strict=True):
        arrays[one.name] = _typed(array, TYPES[one.kind])
    return arrays if described.named else arrays[""]


def _check_expected(described: Description, like: object) -> None:
    """Raise unless the message holds arrays with the names, shapes and types of those in `like`."""
    expected = arrays_of(like)[1]
    if described.named != expected.named:
        raise SideInformationMismatch("the message holds an array and `like` a dictionary of arrays, or the reverse")
    for one in sorted(set(described.arrays) ^ set(expected.arrays)):
        where = "in the message only" if one in described.arrays else "in `like` only"
        raise SideInformationMismatch(f"the message holds other arrays than expected: {one} is {where}")


def _check_memory(described: Description, most: int) -> None:
    if described.memory > most:
        raise InvalidArgument(
            f"the message is for arrays of {described.memory:,} bytes, and {most:,} are allowed: pass like= (an update "
            "with the shapes that you expect) or a larger max_bytes= if that is right"
        )


def _layout(dense: list[Described]) -> Layout:
    return Layout(tuple(one.name for one in dense), tuple(one.shape for one in dense))


def _unchanged(one: Described, content: bytes) -> Array:
    """Return an array that was sent as it is; every byte of a truth value other than 0 means True."""
    if one.kind == "|b1":
        return np.not_equal(np.frombuffer(content, np.uint8), 0).reshape(one.shape)
    return np.frombuffer(content, TYPES[one.kind]).reshape(one.shape).copy()


def _typed(array: Float32, dtype: np.dtype[Any]) -> Array:
    """Return a copy of an array as another type, within the range of that."""
    if dtype.itemsize < array.itemsize:
        largest = float(np.finfo(dtype).max)
        array = np.asarray(np.clip(array, -largest, largest))
    return array.astype(dtype)


def _tag(key: SharedKey) -> bytes:
    return blake2b(SharedKey.checked(key).to_bytes(), digest_size=4, person=b"klms key").digest()


def describe(message: bytes) -> tuple[bytes, Description, int]:
    """Return the tag of the key, the checked description and the place after it; the key is not needed."""
    if len(message) < _HEAD.size or message[:2] != MAGIC:
        raise CorruptMessage("this is not a message of klms.compress: it does not begin with 'KU'")
    _, version, tag, length = _HEAD.unpack_from(message)
    if version != VERSION:
        raise UnsupportedMessage(f"version {version} of the container; this release reads version {VERSION}")
    end = _HEAD.size + length
    if end > len(message):
        raise CorruptMessage("the description is cut off")
    return tag, read_description(message[_HEAD.size : end]), end
