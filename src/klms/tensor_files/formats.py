"""The format of a file, by the extension of its name."""

from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from klms.compressors.arrays import floats_of_bfloat16
from klms.container import BFLOAT16, Array
from klms.errors import DataError, InvalidArgument
from klms.tensor_files.numpy_files import open_npy, open_npz, write_npy, write_npz
from klms.tensor_files.safetensors import open_safetensors, write_safetensors
from klms.tensor_files.source import TensorFile

SAFETENSORS, NPZ, NPY = FORMATS = (".safetensors", ".npz", ".npy")
_OPEN = {SAFETENSORS: open_safetensors, NPZ: open_npz, NPY: open_npy}


def format_of(path: Path) -> str:
    """Return the format of a file; raise an error if no format has its extension."""
    if path.suffix.lower() not in _OPEN:
        raise InvalidArgument(f"{path}: name a file that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return path.suffix.lower()


def open_tensors(path: Path) -> TensorFile:
    """Open a file of tensors; raise a `KLMSError` or an `OSError` that says what is wrong with it."""
    return _OPEN[format_of(path)](path)


def write_tensors(file: IO[bytes], kind: str, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write a file. NumPy has no bfloat16, so its files hold float32 instead; only safetensors has metadata."""
    if kind == SAFETENSORS:
        write_safetensors(file, arrays, metadata)
        return
    plain = {name: _without_bfloat16(array) for name, array in arrays.items()}
    if kind == NPZ:
        write_npz(file, plain)
    elif len(plain) == 1:
        write_npy(file, next(iter(plain.values())))
    else:
        raise DataError(f"a {NPY} file holds one array, and there are {len(plain)}: write a {NPZ} file")


def _without_bfloat16(array: Array) -> Array:
    if array.dtype != BFLOAT16:
        return array
    return np.asarray(floats_of_bfloat16(array.reshape(-1)).reshape(array.shape))
