"""CIFAR's pickles, read without trusting them.

A pickle is a program. This reader lets it build lists, dicts, numbers and strings; what it says of arrays goes into
inert stand-ins, and it can name nothing else. So numpy's own unpickling is not run either.
"""

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from klms.data.errors import DataError, UnsafePickle


class _Array:
    """Stands in for an array: it keeps what the pickle says of it."""

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _DType:
    """Stands in for a data type: it keeps its code."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass


class _Latin1:
    """Stands in for `_codecs.encode`, by which Python 3 writes bytes in the old protocols."""

    def __new__(cls, text: object = "", encoding: object = "latin1") -> Any:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise UnsafePickle(f"asks for the encoding {encoding!r}")
        return text.encode("latin-1")

    def __setstate__(self, state: object) -> None:
        pass


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _Latin1,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise UnsafePickle(f"asks for {module}.{name}") from None


def read(path: Path) -> dict[str, object]:
    """The dict in a CIFAR pickle, with arrays of unsigned bytes as arrays and its keys as text.

    Raises `UnsafePickle` if the pickle names anything else; nothing that it names is run.
    """
    try:
        data = path.read_bytes()
        # The C unpickler makes room for the highest memo index it meets, so a small file could ask for gigabytes.
        for operation, argument, _ in pickletools.genops(data):
            if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
                raise UnsafePickle(f"asks for room for {argument} objects")
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except UnsafePickle as error:
        raise UnsafePickle(f"{path}: not a data file, it {error}; do not use it") from error
    except Exception as error:  # the pickle machine raises almost any kind for a damaged program
        raise DataError(f"{path}: damaged ({error or type(error).__name__}); download it again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, not CIFAR's dict")
    return {_text(key): _array(value, path) if isinstance(value, _Array) else value for key, value in content.items()}


def _text(key: object) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


def _array(stand_in: _Array, path: Path) -> npt.NDArray[np.uint8]:
    state = stand_in.state
    if not (isinstance(state, tuple) and len(state) == 5):
        raise DataError(f"{path}: holds an array without content; download it again")
    _, shape, dtype, by_column, raw = state
    whole = (
        isinstance(shape, tuple)
        and all(isinstance(n, int) and n >= 0 for n in shape)
        and isinstance(dtype, _DType)
        and dtype.code in ("u1", b"u1")
        and isinstance(raw, bytes)
        and math.prod(shape) == len(raw)
    )
    if not whole:
        raise DataError(f"{path}: holds an array that is cut short or not of unsigned bytes; download it again")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_column else "C").copy()
