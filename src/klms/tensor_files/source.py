"""Open files of tensors: each of their tensors is a `Source`."""

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from klms import files
from klms.compressors.arrays import ArraySource, Source
from klms.container import Array, ArrayInfo
from klms.errors import DataError
from klms.numerics.jit import Float32

LARGEST = 1 << 50
"""Maximum size of a file in bytes. Headers have limits of their own, and arrays are limited by the file's content."""


class TensorFile(AbstractContextManager["TensorFile"]):
    """An open file of tensors. Its sources read from it, and are valid as long as it is open."""

    def __init__(self, path: Path, read: "Callable[[TensorFile], None]") -> None:
        """Open a file, and let `read` find its tensors."""
        self.path = path
        self.sources: dict[str, Source] = {}
        self.metadata: dict[str, str] = {}
        """Text that a safetensors file holds in addition to its tensors."""
        with ExitStack() as stack:
            self.file: IO[bytes] = stack.enter_context(files.opened(path, LARGEST))
            self.size = os.fstat(self.file.fileno()).st_size
            read(self)
            self._open = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def damaged(self, what: str) -> DataError:
        """Return the error for a file that is not what its name says."""
        return DataError(f"{self.path}: {what}")

    def read_at(self, place: int, count: int) -> bytes:
        """Return exactly `count` bytes of the file; raise an error if the file ends before that."""
        self.file.seek(place)
        data = self.file.read(count)
        if len(data) < count:
            raise self.damaged(f"the file ends after {place + len(data):,} bytes, in the middle of a tensor")
        return data


class StoredSource(Source):
    """An array in a file, in C order."""

    def __init__(self, file: TensorFile, place: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._file = file
        self._place = place
        self.dtype = dtype
        self.shape = shape

    def floats(self, start: int, stop: int) -> Float32:
        return ArraySource(self._read(start, stop)).floats(0, stop - start)

    def exact(self) -> Array:
        return ArraySource(self._read(0, math.prod(self.shape)).reshape(self.shape)).exact()

    def _read(self, start: int, stop: int) -> Array:
        size = self.dtype.itemsize
        data = self._file.read_at(self._place + start * size, (stop - start) * size)
        return np.frombuffer(data, self.dtype)


def info(name: str, source: Source) -> ArrayInfo:
    """Return the name, type and shape of a tensor."""
    return ArrayInfo(name, source.dtype, source.shape)
