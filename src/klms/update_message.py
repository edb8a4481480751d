"""The message of an update: a frame with a container and the dense scheme.

A message is a `Frame` of kind `UPDATE`. If sender and receiver share a key, the numbers of the frame are the round of
the key and 0, and its digest is a digest of the key. If the message carries its own key, the numbers are 0 and 1, and
the digest is the seed of the key. The body is a container that describes all arrays but does not contain the
floating-point arrays; their coded form follows, in the format of `ChunkedTrellis`.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import IO

import numpy as np

from klms.codec import SharedKey
from klms.compressors.arguments import number
from klms.compressors.arrays import Source, has_tensors, is_dense, put
from klms.compressors.base import check_update
from klms.compressors.layout import Layout
from klms.compressors.trellis import MAX_RATE, MIN_RATE, ChunkedTrellis, Effort, Segment, Trellis
from klms.container import (
    BFLOAT16,
    Array,
    ArrayInfo,
    Description,
    describe,
    description_in,
    read_array,
    read_description,
)
from klms.errors import CorruptMessage, InvalidArgument, SideInformationMismatch, UnsupportedMessage
from klms.frame import BODY, OVERHEAD, Frame, FrameWriter, Kind
from klms.numerics.checks import integer, thread_count
from klms.numerics.jit import Float32
from klms.numerics.parallel import Progress
from klms.progress import reporting

MOST_PARAMETERS = (1 << 32) - 1
"""Maximum number of floating-point entries of all arrays together."""

_ALONE, _TENSOR, _TENSORS = "array", "tensor", "tensors"
"""Notes (`meta`) in the description: one array without a name, one tensor without a name, a dictionary of tensors."""
_SHARED_KEY, _OWN_KEY = 0, 1
"""Values of the frame's second number: sender and receiver share the key, or the message carries its own."""
_SEED = 8  # bytes
_DEFAULT_BITS = 1.0
_MOST_BYTES = 1 << 62


@dataclass(frozen=True)
class Coding:
    """How an update becomes a message; the fields without a description here are arguments of `compress`."""

    bits_per_parameter: float | None = None
    """If this is None and there is no budget either, the rate is 1."""
    key: SharedKey | None = None
    budget_bytes: int | None = None
    effort: Effort = "balanced"
    threads: int | None = None
    rng: np.random.Generator | None = None
    progress: Progress | bool = False
    echo: float = 0.0
    """Share of this message's error that the next update is expected to contain (`Trellis.echo`)."""

    def __post_init__(self) -> None:
        thread_count(self.threads)  # raises an error before anything is written


def write_update(file: IO[bytes], sources: Mapping[str, Source], meta: object, coding: Coding) -> int:
    """Write the message of these arrays, with `meta` in the description; return its length."""
    total = _total_rate(coding)
    rng = coding.rng or np.random.default_rng()
    key, frame = _key_and_frame(coding.key, rng)
    description = describe(sources, meta, bfloat16=True)
    exact = [source for source in sources.values() if not source.is_dense]
    dense = {name: source for name, source in sources.items() if source.is_dense}
    layout = Layout(tuple(dense), tuple(source.shape for source in dense.values()))
    if layout.d > MOST_PARAMETERS:
        raise InvalidArgument(f"there are more than {MOST_PARAMETERS:,} parameters: use several messages")

    others = sum(source.dtype.itemsize * _entries(source) for source in exact)
    most = _room(coding.budget_bytes, OVERHEAD + len(description) + others, layout.d)
    rate = _rate(total, 8 * (OVERHEAD + len(description)), most, layout.d)
    writer = FrameWriter(file, frame)
    writer.write(description)
    for source in exact:
        writer.write(source.exact().reshape(-1).view(np.uint8).data)
    if layout.d:
        in_order = list(dense.values())

        def load(segment: Segment) -> Float32:
            floats = in_order[segment.array].floats(segment.start, segment.stop)
            check_update(floats, segment.stop - segment.start, total)
            return floats

        with reporting(coding.progress, "compressing") as report:
            settings = Trellis(layout, rate, coding.effort, coding.threads, coding.echo, progress=report)
            for part in ChunkedTrellis(settings).encode_parts(load, key, rng, most):
                writer.write(part)
    return writer.finish()


def read_header(file: IO[bytes]) -> tuple[Frame, Description]:
    """Check the frame of the message in a file, and read the description of its arrays.

    The file is left at the start of the arrays.
    """
    frame = Frame.from_file(file, Kind.UPDATE)
    if frame.second not in (_SHARED_KEY, _OWN_KEY):
        raise UnsupportedMessage("the message was made by a newer release: update klms")
    file.seek(BODY)
    described = read_description(description_in(file), bfloat16=True)
    if is_alone(described) and [one.name for one in described.arrays] != [""]:
        raise CorruptMessage("the message holds one array without a name, and others")
    return frame, described


def read_arrays(
    file: IO[bytes],
    described: Description,
    key: SharedKey,
    threads: int | None,
    progress: Progress | bool,
    *,
    bfloat16: bool,
) -> dict[str, Array]:
    """Return the arrays of a message whose header has been read; bfloat16 becomes float32 unless `bfloat16` is set."""
    dense = _dense(described)
    found: dict[int, Array] = {}

    def store(segment: Segment, floats: Float32) -> None:
        if segment.array not in found:
            found[segment.array] = _empty(dense[segment.array], bfloat16)
        put(found[segment.array], segment.start, floats)

    arrays = read_segments(file, described, key, threads, progress, store)
    for n, one in enumerate(dense):
        arrays[one.name] = found[n] if n in found else _empty(one, bfloat16)
    return {one.name: arrays[one.name] for one in described.arrays}


def read_segments(
    file: IO[bytes],
    described: Description,
    key: SharedKey,
    threads: int | None,
    progress: Progress | bool,
    store: Callable[[Segment, Float32], None],
) -> dict[str, Array]:
    """Decode a message whose header has been read, segment by segment; return the arrays that were sent unchanged."""
    threads = thread_count(threads)
    end = file.seek(0, io.SEEK_END) - (OVERHEAD - BODY)
    file.seek(BODY + described.end)
    read = _reader(file, end)
    exact = {one.name: read_array(one, read(one.nbytes)).copy() for one in described.arrays if not is_dense(one.dtype)}
    dense = _dense(described)
    layout = Layout(tuple(one.name for one in dense), tuple(one.shape for one in dense))
    with reporting(progress, "decompressing") as report:
        chunked = ChunkedTrellis(Trellis(layout, threads=threads, agreed=False, progress=report))
        chunked.decode_parts(read, end - file.tell(), key, store)
    if file.tell() != end:
        raise CorruptMessage("there is more in the message than its arrays")
    return exact


def form_of(update: object) -> str | None:
    """Return the note in an update's description that tells `decompress` whether to return arrays or tensors."""
    if isinstance(update, Mapping):
        return _TENSORS if has_tensors(update) else None
    return _TENSOR if has_tensors(update) else _ALONE


def is_alone(described: Description) -> bool:
    """Return whether a message holds an array or a tensor that was not in a dictionary."""
    return described.meta in (_ALONE, _TENSOR)


def is_difference(described: Description) -> bool:
    """Return whether a message holds the difference from the tensors of another file (`klms encode --base`)."""
    return isinstance(described.meta, dict) and "base" in described.meta


def of_tensors(described: Description) -> bool:
    """Return whether a message was made from torch tensors."""
    return described.meta in (_TENSOR, _TENSORS)


def carries_key(frame: Frame) -> bool:
    """Return whether a message carries its own key."""
    return frame.second == _OWN_KEY


def key_of(frame: Frame, key: SharedKey | None) -> SharedKey:
    """Return the key of a message: its own, or the receiver's key if the message was made with that key."""
    if carries_key(frame):
        if key is not None:
            SharedKey.checked(key)
            raise SideInformationMismatch("the message carries its own key, and another was given: pass no key=")
        return _own_key(frame)
    if key is None:
        raise SideInformationMismatch("the message does not carry its key: pass the key= that it was made with")
    if frame.digest != _digest(key):
        raise SideInformationMismatch("the message was made with another key")
    return key


def _key_and_frame(key: SharedKey | None, rng: np.random.Generator) -> tuple[SharedKey, Frame]:
    """Return the key of a message, the caller's or a new one, and the frame that identifies the key."""
    if key is not None:
        return key, Frame(Kind.UPDATE, SharedKey.checked(key).round, _SHARED_KEY, _digest(key))
    frame = Frame(Kind.UPDATE, 0, _OWN_KEY, rng.bytes(_SEED))
    return _own_key(frame), frame


def _own_key(frame: Frame) -> SharedKey:
    return SharedKey(seed=int.from_bytes(frame.digest, "little"), round=0, client=0)


def _digest(key: SharedKey) -> bytes:
    return blake2b(SharedKey.checked(key).to_bytes(), digest_size=8, person=b"klms key").digest()


def _total_rate(coding: Coding) -> float:
    """Return the bits per parameter of the whole message; a budget, if there is one, overrides this rate."""
    if coding.budget_bytes is not None:
        integer("budget_bytes", coding.budget_bytes, 0, _MOST_BYTES)
        if coding.bits_per_parameter is not None:
            raise InvalidArgument("both bits_per_parameter and budget_bytes set the length of the message: omit one")
    if coding.bits_per_parameter is None:
        return _DEFAULT_BITS
    bits = number("bits_per_parameter", coding.bits_per_parameter)
    if not MIN_RATE <= bits <= MAX_RATE:
        raise InvalidArgument(f"bits_per_parameter must be from {MIN_RATE:g} to {MAX_RATE:g}, got {bits}")
    return bits


def _room(budget: int | None, others: int, parameters: int) -> int | None:
    """Return how many bytes of a budget are left for the floating-point arrays."""
    if budget is None:
        return None
    room = budget - others
    if room < (1 if parameters else 0):
        raise InvalidArgument(
            f"budget_bytes is {budget:,}, but names, shapes and arrays that are sent unchanged take {others:,} bytes"
        )
    return room


def _rate(bits_per_parameter: float, heads: float, most: int | None, parameters: int) -> float:
    """Return the rate of the floating-point arrays: from the bytes of a budget, or from the total rate minus `heads`.

    `heads` are the bits of the frame and of the description, which take at most half of the total.
    """
    if not parameters:
        return MAX_RATE
    if most is not None:
        return min(max(8 * most / parameters, MIN_RATE), MAX_RATE)
    return max(bits_per_parameter - min(heads / parameters, bits_per_parameter / 2), MIN_RATE)


def _dense(described: Description) -> list[ArrayInfo]:
    return [one for one in described.arrays if is_dense(one.dtype)]


def _empty(one: ArrayInfo, bfloat16: bool) -> Array:
    """Return an array to be filled; bfloat16 becomes float32 unless `bfloat16` is set."""
    return np.empty(one.shape, np.float32 if one.dtype == BFLOAT16 and not bfloat16 else one.dtype)


def _reader(file: IO[bytes], end: int) -> Callable[[int], bytes]:
    """Return a function that reads the next bytes of the body, and raises an error if fewer are left."""

    def read(count: int) -> bytes:
        if count > end - file.tell():
            raise CorruptMessage("the arrays are cut off")
        return file.read(count)

    return read


def _entries(one: Source) -> int:
    return ArrayInfo("", one.dtype, one.shape).entries
