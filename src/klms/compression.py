"""Any update as bytes, and back: functions for programs with their own training engine."""

import io
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING

import numpy as np

from klms.codec import SharedKey
from klms.compressors.arrays import as_tensor, has_tensors, is_dense, loaded_torch, put, sources_of
from klms.compressors.trellis import Effort, Segment
from klms.container import BFLOAT16, Array, ArrayInfo, Description, describe, read_description
from klms.errors import InvalidArgument, SideInformationMismatch
from klms.frame import Frame
from klms.numerics.jit import Float32
from klms.numerics.parallel import Progress
from klms.update_message import (
    Coding,
    form_of,
    is_alone,
    is_difference,
    key_of,
    of_tensors,
    read_arrays,
    read_header,
    read_segments,
    write_update,
)

if TYPE_CHECKING:
    import torch

FREE_BYTES = 1 << 28
"""Memory in bytes that even the shortest message may require: that of 67 million float32 parameters."""
BYTES_PER_BYTE = 1 << 10
"""Additional memory in bytes that a message may require per byte of its length: float32 at 1/32 bit per parameter."""
_EXPECT = "pass like= (an update with the shapes that you expect) or a larger max_bytes="


def compress(
    update: object,
    bits_per_parameter: float | None = None,
    *,
    key: SharedKey | None = None,
    budget_bytes: int | None = None,
    effort: Effort = "balanced",
    threads: int | None = None,
    rng: np.random.Generator | None = None,
    progress: Progress | bool = False,
) -> bytes:
    """Return an update as bytes. `decompress` returns the update plus noise of mean zero.

    Args:
        update: An array, or a mapping of arrays, such as a difference of state dicts. Arrays may be NumPy's, torch's on
            any device, or others that NumPy can read, such as those of JAX and TensorFlow. Arrays of integers and
            booleans are sent unchanged, in addition to the coded ones; long double becomes float64, and float16 is
            clipped to its range. Complex numbers, dates, text, objects and masked arrays are refused.
        bits_per_parameter: Length of the whole message, from 0.0001 to 8 bits per parameter; by default 1, unless
            `budget_bytes` is given. Names and shapes take up to half of it, and more if there are many tiny arrays.
        key: Randomness that sender and receiver share; no two messages may have the same key. Without a key, the
            message carries a random seed of its own, at no cost in bytes.
        budget_bytes: Length that the message never exceeds, instead of `bits_per_parameter`.
        effort: Trade-off between encoding time and error, with the same decoder.
        threads: Number of threads, by default one per core. The bytes are the same with any number.
        rng: Source of randomness for rounding, and for the seed of a message without a key; by default the operating
            system's.
        progress: Function that is called with the number of finished steps and the total number of steps; True draws a
            bar on a terminal.

    Memory in addition to the update and the message is at most a few hundred megabytes, whatever the size of the
    update.

    >>> update = {"weight": np.ones((40, 50), dtype=np.float32), "steps": np.array(7)}
    >>> message = compress(update, 2.0)
    >>> len(message) < 2000 * 2 / 8 + 8
    True
    >>> decoded = decompress(message)
    >>> decoded["weight"].shape, int(decoded["steps"])
    ((40, 50), 7)

    With a key, which the receiver must know, and in at most 300 bytes:

    >>> key = SharedKey(seed=1, round=1, client=0)
    >>> message = compress(update, budget_bytes=300, key=key)
    >>> len(message) <= 300, decompress(message, key=key)["weight"].shape
    (True, (40, 50))
    """
    file = io.BytesIO()
    coding = Coding(bits_per_parameter, key, budget_bytes, effort, threads, rng, progress)
    write_update(file, sources_of(update), form_of(update), coding)
    return file.getvalue()


def compress_to(
    file: IO[bytes],
    update: object,
    bits_per_parameter: float | None = None,
    *,
    key: SharedKey | None = None,
    budget_bytes: int | None = None,
    effort: Effort = "balanced",
    threads: int | None = None,
    rng: np.random.Generator | None = None,
    progress: Progress | bool = False,
) -> int:
    """Write the message that `compress` would return to a binary file, part by part; return its length.

    The message is never in memory as a whole. If an error is raised, the file holds only a part of the message, and
    `decompress` refuses it.

    >>> file = io.BytesIO()
    >>> length = compress_to(file, np.ones(3000, dtype=np.float32), 0.5)
    >>> length == len(file.getvalue()), decompress(file).shape
    (True, (3000,))
    """
    coding = Coding(bits_per_parameter, key, budget_bytes, effort, threads, rng, progress)
    return write_update(file, sources_of(update), form_of(update), coding)


def decompress(
    message: bytes | bytearray | memoryview | IO[bytes],
    *,
    key: SharedKey | None = None,
    like: object = None,
    max_bytes: int | None = None,
    threads: int | None = None,
    progress: Progress | bool = False,
) -> "Array | dict[str, Array] | torch.Tensor | dict[str, torch.Tensor]":
    """Return the update that a message of `compress` holds, with its noise; raise a `KLMSError` for any other bytes.

    A few bytes can stand for many zeros, so pass `like` for a message from an untrusted sender.

    Args:
        message: The bytes, or a binary file that holds them and nothing else.
        key: The key that the message was made with; None if it carries its own.
        like: An update (or a model) with the expected names, shapes and types; a message with others is refused.
        max_bytes: Memory that the arrays may take. If neither this nor `like` is given, the limit is 256 MiB plus 1024
            times the length of the message. The limit and `like` are checked before anything is allocated.
        threads: Number of threads, by default one per core.
        progress: As in `compress`.

    Returns:
        Tensors on the CPU if tensors were compressed and this program has imported torch, or if `like` has tensors;
        otherwise NumPy arrays, with float32 in place of bfloat16. Types and shapes are those of the compressed update.
        Decoding takes up to twice the memory of the arrays, plus a few hundred megabytes for large arrays.
    """
    file = seekable(message)
    frame, described = read_header(file)
    _check_whole(described)
    used = key_of(frame, key)
    as_tensors = of_tensors(described) and loaded_torch() is not None
    if like is not None:
        as_tensors = has_tensors(like)
        _check_expected(described, like, as_tensors)
    elif max_bytes is None:
        max_bytes = _allowed(file)
    if max_bytes is not None:
        check_memory(described, max_bytes, _EXPECT)
    arrays = read_arrays(file, described, used, threads, progress, bfloat16=as_tensors)
    alone = is_alone(described)
    if as_tensors:
        tensors = {name: as_tensor(array) for name, array in arrays.items()}
        return tensors[""] if alone else tensors
    return arrays[""] if alone else arrays


def decompress_from(
    file: IO[bytes],
    take: Callable[[str, int, Array], None],
    *,
    key: SharedKey | None = None,
    max_bytes: int | None = None,
    threads: int | None = None,
    progress: Progress | bool = False,
) -> None:
    """Decode the message in a binary file part by part; the arrays are never in memory as a whole.

    Args:
        file: A binary file that holds the message and nothing else.
        take: Function that is called with the name of an array, the place of a part in the flattened array, and the
            part, which has one axis. The parts of an array are passed in order and hold all of its entries; an array
            without entries is passed as one empty part. `klms.inspect` shows shapes and types; bfloat16 becomes
            float32.
        key: As in `decompress`.
        max_bytes: Limit on the bytes of all arrays together, by default as in `decompress`.
        threads: Number of threads, by default one per core.
        progress: As in `compress`.

    Damage raises an error before the first part is passed; a forged message may yield parts before the error.

    >>> file = io.BytesIO(compress({"weight": np.ones((40, 50), dtype=np.float32), "steps": np.arange(3)}))
    >>> found = {"weight": np.zeros(2000), "steps": np.zeros(3)}  # a memory-mapped array is filled in the same way
    >>> def take(name, start, part):
    ...     found[name][start : start + part.size] = part
    >>> decompress_from(file, take)
    >>> found["steps"].tolist(), bool(0.9 < found["weight"].mean() < 1.1)
    ([0.0, 1.0, 2.0], True)
    """
    file = seekable(file)
    frame, described = read_header(file)
    _check_whole(described)
    used = key_of(frame, key)
    check_memory(described, _allowed(file) if max_bytes is None else max_bytes, "pass a larger max_bytes=")
    dense = [one for one in described.arrays if is_dense(one.dtype)]
    empty = {one.name: _part(one, 0) for one in dense}

    def store(segment: Segment, floats: Float32) -> None:
        one = dense[segment.array]
        part = _part(one, floats.size)
        put(part, 0, floats)
        take(one.name, segment.start, part)
        empty.pop(one.name, None)

    exact = read_segments(file, described, used, threads, progress, store)
    for name, part in empty.items():
        take(name, 0, part)
    for name, array in exact.items():
        take(name, 0, array.reshape(-1))


def inspect_update(message: bytes) -> tuple[Frame, Description]:
    """Return the frame of a message without its body, and the description of its arrays; the key is not needed."""
    return read_header(io.BytesIO(message))


def seekable(message: bytes | bytearray | memoryview | IO[bytes]) -> IO[bytes]:
    """Return a message as a seekable file."""
    if isinstance(message, bytes | bytearray | memoryview):
        return io.BytesIO(message)
    if not hasattr(message, "read") or isinstance(message, io.TextIOBase):
        kind = type(message).__name__
        raise InvalidArgument(f"message must be bytes or a binary file (open it with 'rb'), got {kind}")
    return message if message.seekable() else io.BytesIO(message.read())


def _check_whole(described: Description) -> None:
    """Raise if a message holds a difference from another file: the difference is useless without that file."""
    if is_difference(described):
        raise InvalidArgument(
            "the message holds the difference from another file: restore the tensors with `klms decode --base`, "
            "or with klms.tensor_files.decode(..., base=...)"
        )


def _part(one: ArrayInfo, size: int) -> Array:
    return np.empty(size, np.float32 if one.dtype == BFLOAT16 else one.dtype)


def _allowed(file: IO[bytes]) -> int:
    """Return the bytes that the arrays of a message may take if the caller sets no limit."""
    return FREE_BYTES + BYTES_PER_BYTE * file.seek(0, io.SEEK_END)


def _check_expected(described: Description, like: object, as_tensors: bool) -> None:
    """Raise unless the message holds arrays with the names, shapes and types of those in `like`."""
    expected = set(read_description(describe(sources_of(like), bfloat16=True), bfloat16=True).arrays)
    found = set(described.arrays)
    if not as_tensors:  # NumPy has no bfloat16 and gets float32 instead
        expected, found = set(map(_widened, expected)), set(map(_widened, found))
    if is_alone(described) == isinstance(like, Mapping):
        raise SideInformationMismatch("the message holds an array and `like` a dictionary of arrays, or the reverse")
    for one in sorted(found ^ expected, key=str):
        where = "in the message only" if one in found else "in `like` only"
        raise SideInformationMismatch(f"the message holds other arrays than expected: {one} is {where}")


def _widened(one: ArrayInfo) -> ArrayInfo:
    return one._replace(dtype=np.dtype("<f4")) if one.dtype == BFLOAT16 else one


def check_memory(described: Description, most: int, remedy: str) -> None:
    """Raise an error if the arrays of a message take more than `most` bytes of memory."""
    # Floating-point numbers are decoded as float32 before they get their type.
    needed = sum(one.entries * max(one.dtype.itemsize, 4 if is_dense(one.dtype) else 1) for one in described.arrays)
    if needed > most:
        raise InvalidArgument(
            f"the message is for arrays of {needed:,} bytes, and {most:,} are allowed: {remedy} if that is right"
        )
