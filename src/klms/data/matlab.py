"""MATLAB files, read by SciPy in a process of its own: a hostile file can crash that process, but not klms."""

import importlib.util
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from klms.data.archive import read_arrays
from klms.data.packages import run
from klms.errors import CorruptMessage, DataError

# SciPy and the largest official file need a quarter of this.
MAX_MEMORY = 4 << 30


def read_matlab(path: Path, types: Mapping[str, str]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays at these places, each with the given integer type; raise `DataError` for other files.

    A place is the name of a variable, followed by names of fields if the variable is a struct: `dataset.train.images`.
    """
    if importlib.util.find_spec("scipy") is None:
        raise DataError(f"{path}: SciPy is needed to read MATLAB files; run: pip install scipy")
    with tempfile.TemporaryDirectory(prefix="klms-data-") as work:
        converted = Path(work) / "converted.npz"
        command = [sys.executable, "-m", __name__, str(path.absolute()), str(converted), json.dumps(dict(types))]
        try:
            run(command, Path(work))
            with converted.open("rb") as file:
                return read_arrays(file, converted.stat().st_size)
        except (DataError, CorruptMessage) as error:
            raise DataError(
                f"{path} is not the official MATLAB file or is damaged ({error}); download it again"
            ) from error


def _convert(path: str, converted: str, types: str) -> None:
    from scipy.io import loadmat  # type: ignore[import-untyped]

    wanted: dict[str, str] = json.loads(types)
    content = loadmat(path, variable_names=[place.partition(".")[0] for place in wanted])
    arrays = {place: _exact(_found(content, place), np.dtype(name)) for place, name in wanted.items()}
    np.savez(converted, allow_pickle=False, **arrays)


def _found(content: Mapping[str, npt.NDArray[Any]], place: str) -> npt.NDArray[Any]:
    variable, *fields = place.split(".")
    values = content[variable]
    for field in fields:
        values = values[0, 0][field]  # a struct is an array of one entry
    return values


def _exact(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    converted = values.astype(dtype)
    if not np.array_equal(converted, values):
        raise ValueError(f"values are not {dtype}")
    return converted


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


if __name__ == "__main__":
    _limit_memory()
    try:
        _convert(*sys.argv[1:])
    except Exception as error:  # SciPy raises many kinds of errors for a damaged file, down to Exception itself
        sys.exit(f"error: {error!r}")
