"""A file of tensors, or its difference from another file, as a message that carries its own key, and back.

Besides the description of the arrays, a message has `{"file": the file name's extension, "metadata": the metadata of
safetensors, "base": the digest of the other file's tensors}`; the last two members only if they exist.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np

from klms import files
from klms.compression import BYTES_PER_BYTE, FREE_BYTES, check_memory
from klms.compressors.arrays import ArraySource, Source, is_dense, put
from klms.compressors.base import LARGEST_ENTRY, largest_entry
from klms.compressors.trellis import Effort, Segment
from klms.container import Array, Description
from klms.errors import CorruptMessage, DataError, InvalidArgument, SideInformationMismatch, TrainingDiverged
from klms.numerics.jit import Float32
from klms.numerics.parallel import Progress
from klms.tensor_files.formats import NPY, NPZ, format_of, open_tensors, write_tensors
from klms.tensor_files.source import LARGEST, info
from klms.update_message import Coding, key_of, read_arrays, read_header, read_segments, write_update

_PART = 1 << 22  # entries that are read at a time


@dataclass(frozen=True)
class Encoded:
    """The outcome of encoding a file."""

    tensors: int
    parameters: int
    """Number of floating-point entries, which are coded; other entries are sent unchanged."""
    file_bytes: int
    message_bytes: int
    relative_error: float
    """Squared error divided by the squared norm, of the file or of the difference."""
    seconds: float

    @property
    def bits_per_parameter(self) -> float:
        return 8 * self.message_bytes / max(self.parameters, 1)


def encode(
    path: Path | str,
    out: Path | str,
    bits_per_parameter: float | None = None,
    *,
    base: Path | str | None = None,
    budget_bytes: int | None = None,
    unbiased: bool = False,
    effort: Effort = "balanced",
    threads: int | None = None,
    rng: np.random.Generator | None = None,
    progress: Progress | bool = False,
) -> Encoded:
    """Write the message of a `.safetensors`, `.npz` or `.npy` file to `out`, completely or not at all.

    Args:
        path: The file. Its floating-point tensors are coded; other tensors are sent unchanged.
        out: Path of the message; an existing file is replaced.
        bits_per_parameter: Length of the message, as in `klms.compress`; by default 1, unless there is a budget.
        base: A file with the same tensors, from which the difference is coded. `decode` needs this file as well.
        budget_bytes: Length that the message never exceeds, instead of `bits_per_parameter`.
        unbiased: Whether the noise has mean zero, for messages that are averaged, as in `klms.compress`. Otherwise each
            message by itself has the smallest error, which never exceeds the error of sending zeros.
        effort: Trade-off between encoding time and error, with the same decoder.
        threads: Number of threads, by default one per core.
        rng: Source of randomness, by default the operating system's.
        progress: As in `klms.compress`.

    Returns:
        Sizes, error and time. The message has been decoded once to measure its error.
    """
    path, out, base = _path(path), _path(out), None if base is None else _path(base)
    check_apart(out, path, base)
    started = time.perf_counter()
    echo = 0.0 if unbiased else 1.0
    coding = Coding(bits_per_parameter, None, budget_bytes, effort, threads, rng, progress, echo)
    with ExitStack() as stack:
        opened = stack.enter_context(open_tensors(path))
        meta: dict[str, Any] = {"file": format_of(path)}
        if opened.metadata:
            meta["metadata"] = opened.metadata
        sources = opened.sources
        if base is not None:
            other = stack.enter_context(open_tensors(base)).sources
            _check_same(sources, other, base)
            meta["base"] = _digest(other, sources)
            sources = {name: _Difference(source, other[name]) for name, source in sources.items()}
        file = stack.enter_context(files.replacing(out))
        try:
            written = write_update(file, sources, meta, coding)
        except TrainingDiverged as diverged:
            entries = f"entries that are not finite, or above {LARGEST_ENTRY:g}"
            whose = str(path) if base is None else f"{path} minus {base}"
            raise DataError(f"{whose}: {_not_finite(sources)} has {entries}, which cannot be encoded") from diverged
        error = _relative_error(file, sources, threads)
    parameters = sum(math.prod(source.shape) for source in sources.values() if source.is_dense)
    return Encoded(len(sources), parameters, opened.size, written, error, time.perf_counter() - started)


def decode(
    path: Path | str,
    out: Path | str,
    *,
    base: Path | str | None = None,
    max_bytes: int | None = None,
    threads: int | None = None,
    progress: Progress | bool = False,
) -> int:
    """Write the tensors of a message to a `.safetensors`, `.npz` or `.npy` file, completely or not at all.

    Args:
        path: Path of a message from `encode`, or from `klms.compress` without a key.
        out: Path of the file, whose extension determines the format; an existing file is replaced.
        base: The file from which the difference was coded, if the message holds a difference.
        max_bytes: Memory that the tensors may take, by default 256 MiB plus 1024 times the length of the message.
        threads: Number of threads, by default one per core.
        progress: As in `klms.compress`.

    Returns:
        The number of tensors.
    """
    path, out, base = _path(path), _path(out), None if base is None else _path(base)
    check_apart(out, path, base)
    kind = format_of(out)
    with ExitStack() as stack:
        file = stack.enter_context(files.opened(path, LARGEST))
        try:
            frame, described = read_header(file)
            key = key_of(frame, None)
        except (CorruptMessage, SideInformationMismatch) as error:
            raise type(error)(f"{path}: {error}") from error
        meta = _meta(described)
        if base is None and "base" in meta:
            raise InvalidArgument(f"{path} is a difference: name the file that it was made from with --base")
        other: dict[str, Source] = {}
        if base is not None:
            other = stack.enter_context(open_tensors(base)).sources
            _check_base(described, meta, other, base)
        if max_bytes is None:
            max_bytes = FREE_BYTES + BYTES_PER_BYTE * path.stat().st_size
        check_memory(described, max_bytes, "raise --max-bytes")
        if kind == NPY and len(described.arrays) != 1:
            raise DataError(f"a {NPY} file holds one array, and {path} has {len(described.arrays)}: write a {NPZ} file")
        arrays = read_arrays(file, described, key, threads, progress, bfloat16=True)
        for name in other:
            if name in arrays and is_dense(arrays[name].dtype):
                _add(arrays[name], other[name])
        if kind != NPY and list(arrays) == [""]:
            arrays = {"array": arrays[""]}
        target = stack.enter_context(files.replacing(out))
        write_tensors(target, kind, arrays, meta.get("metadata", {}))
    return len(arrays)


def check_apart(target: Path, *sources: Path | None) -> None:
    """Raise an error if writing the target would overwrite a file that is read."""
    for source in sources:
        if source is not None and source.exists() and target.exists() and target.samefile(source):
            raise InvalidArgument(f"{target} would overwrite what is read: name another file")


def _path(path: Path | str) -> Path:
    if not isinstance(path, str | PathLike):
        raise InvalidArgument(f"the path of a file is expected, got {type(path).__name__}")
    return Path(path)


def _not_finite(sources: Mapping[str, Source]) -> str:
    """Return which tensor has an entry that cannot be encoded."""
    for name, source in sources.items():
        if source.is_dense and not largest_entry(source.floats(0, math.prod(source.shape))) <= LARGEST_ENTRY:
            return f"tensor {name!r}" if name else "the array"
    return "a tensor"


class _Difference(Source):
    """A tensor minus another tensor; integers and booleans stay unchanged."""

    def __init__(self, source: Source, base: Source) -> None:
        self._source = source
        self._base = base
        self.dtype = source.dtype
        self.shape = source.shape

    def floats(self, start: int, stop: int) -> Float32:
        return self._source.floats(start, stop) - self._base.floats(start, stop)

    def exact(self) -> Array:
        return self._source.exact()


def _check_same(sources: Mapping[str, Source], other: Mapping[str, Source], base: Path) -> None:
    """Raise unless the base has all floating-point tensors, with their shapes."""
    for name, source in sources.items():
        if source.is_dense and (name not in other or other[name].shape != source.shape):
            found = "has no tensor of that name" if name not in other else f"has shape {other[name].shape}"
            raise InvalidArgument(f"{info(name, source)} has no counterpart in {base}, which {found}")
        if source.is_dense and not other[name].is_dense:
            raise InvalidArgument(f"tensor {name!r} holds integers in {base}")


def _check_base(described: Description, meta: dict[str, Any], other: Mapping[str, Source], base: Path) -> None:
    """Raise unless a message was made from this base."""
    if "base" not in meta:
        raise InvalidArgument("the message is not a difference: omit --base")
    dense = [one for one in described.arrays if is_dense(one.dtype)]
    same = all(one.name in other and other[one.name].shape == one.shape for one in dense)
    if not same or _digest(other, [one.name for one in dense]) != meta["base"]:
        raise SideInformationMismatch(f"the message was made from a base other than {base}")


def _digest(other: Mapping[str, Source], names: Iterator[str] | Mapping[str, Source] | list[str]) -> str:
    """Return a digest of the named floating-point tensors of a base."""
    state = blake2b(digest_size=8, person=b"klms base")
    for name in names:
        if name in other and other[name].is_dense:
            size = math.prod(other[name].shape)
            for start in range(0, size, _PART):
                state.update(np.ascontiguousarray(other[name].floats(start, min(start + _PART, size))).data)
    return state.hexdigest()


def _meta(described: Description) -> dict[str, Any]:
    """Return what a message says about its file; messages of `klms.compress` say nothing."""
    meta = described.meta
    if not isinstance(meta, dict):
        return {}
    metadata = meta.get("metadata", {})
    if not isinstance(metadata, dict) or not all(_is_unicode(text) for pair in metadata.items() for text in pair):
        raise CorruptMessage("the metadata of the message is not a mapping from names to text")
    return meta


def _is_unicode(value: object) -> bool:
    """Return whether a value is text that can be written, unlike half of a surrogate pair, which JSON can hold."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _add(array: Array, base: Source) -> None:
    """Add a tensor of the base to a decoded difference, in place."""
    difference = ArraySource(array)
    for start in range(0, array.size, _PART):
        stop = min(start + _PART, array.size)
        put(array, start, difference.floats(start, stop) + base.floats(start, stop))


def _relative_error(file: IO[bytes], sources: Mapping[str, Source], threads: int | None) -> float:
    """Return the squared error of a message over the squared norm, with only one chunk in memory at a time."""
    dense = [source for source in sources.values() if source.is_dense]
    totals = np.zeros(2)

    def compare(segment: Segment, floats: Float32) -> None:
        for start in range(segment.start, segment.stop, _PART):
            stop = min(start + _PART, segment.stop)
            wanted = dense[segment.array].floats(start, stop)
            off = wanted - floats[start - segment.start : stop - segment.start]
            totals[:] += np.vdot(off, off), np.vdot(wanted, wanted)

    frame, described = read_header(file)
    read_segments(file, described, key_of(frame, None), threads, False, compare)
    return float(totals[0] / totals[1]) if totals[1] else 0.0
