"""EMNIST's MATLAB file, read by SciPy in a process of its own: a hostile file can crash that process, but not klms."""

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from klms.data.archive import read_arrays
from klms.data.packages import run
from klms.errors import CorruptMessage, DataError

# SciPy and the largest official file need a quarter of this.
MAX_MEMORY = 4 << 30
_FIELDS: dict[str, type[np.integer[Any]]] = {"images": np.uint8, "labels": np.int64, "writers": np.int64}


def read_emnist(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return images (a row each), labels and writers by name, as `train.images`; raise `DataError` for other files."""
    if importlib.util.find_spec("scipy") is None:
        raise DataError(f"{path}: SciPy is needed to read MATLAB files; run: pip install scipy, or use the IDX files")
    with tempfile.TemporaryDirectory(prefix="klms-data-") as work:
        converted = Path(work) / "emnist.npz"
        try:
            run([sys.executable, "-m", __name__, str(path.absolute()), str(converted)], Path(work))
            with converted.open("rb") as file:
                return read_arrays(file, converted.stat().st_size)
        except (DataError, CorruptMessage) as error:
            raise DataError(f"{path} is not EMNIST's MATLAB file or is damaged ({error}); download it again") from error


def _convert(path: str, converted: str) -> None:
    from scipy.io import loadmat  # type: ignore[import-untyped]

    content = loadmat(path, variable_names=["dataset"])["dataset"][0, 0]
    halves = {half: content[half][0, 0] for half in ("train", "test")}
    arrays = {
        f"{half}.{name}": _exact(found[name], kind) for half, found in halves.items() for name, kind in _FIELDS.items()
    }
    np.savez(converted, allow_pickle=False, **arrays)


def _exact(values: npt.NDArray[Any], dtype: type[np.integer[Any]]) -> npt.NDArray[Any]:
    converted = values.astype(dtype)
    if not np.array_equal(converted, values):
        raise ValueError(f"values are not {dtype.__name__}")
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
