"""A whole state as bytes for a client, losslessly and compactly: masks average to few different probabilities.

A NumPy archive. An array of floating-point numbers with at most 256 different values is written as these values and an
index of one byte each; indices and integers are deflated, other numbers are not, since that saves nothing.
"""

import io
import zipfile

import numpy as np
import numpy.typing as npt

from klms.errors import CorruptMessage
from klms.methods.state import Arrays, State

_VALUES, _INDICES = "values.", "indices."
_MOST_VALUES = 256
_PEEK = 4096  # entries; if these have too many values, so has the array
_OVERHEAD = 1 << 16  # bytes of an archive besides its arrays, at most


def write_snapshot(state: State, left_out: frozenset[str] = frozenset()) -> bytes:
    """Return the state without what each client remembers, and without the private arrays named in `left_out`."""
    groups = {"shared": state.shared, "private": {n: a for n, a in state.private.items() if n not in left_out}}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        _write(archive, "round", np.array(state.round))
        for group, arrays in groups.items():
            for name, array in arrays.items():
                if (palette := _palette(array)) is None:
                    _write(archive, f"{group}.{name}", np.asarray(array))
                else:
                    _write(archive, f"{_VALUES}{group}.{name}", palette[0])
                    _write(archive, f"{_INDICES}{group}.{name}", palette[1])
    return buffer.getvalue()


def read_snapshot(data: bytes, like: State) -> State:
    """Undo `write_snapshot`; `like` is a state of the same method, whose size bounds what is unpacked."""
    limit = 4 * sum(array.nbytes for array in [*like.shared.values(), *like.private.values()]) + _OVERHEAD
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > limit:
                raise CorruptMessage("the snapshot unpacks to more than the model's state can be")
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            found: Arrays = {name: stored[name] for name in stored.files if not name.startswith((_VALUES, _INDICES))}
            indexed = [name.removeprefix(_INDICES) for name in stored.files if name.startswith(_INDICES)]
            found = {**found, **{name: stored[_VALUES + name][stored[_INDICES + name]] for name in indexed}}
        groups: dict[str, dict[str, npt.NDArray[np.generic]]] = {"shared": {}, "private": {}}
        for name, array in found.items():
            group, _, rest = name.partition(".")
            if rest:
                groups[group][rest] = array
        return State(int(np.asarray(found["round"]).item()), groups["shared"], groups["private"])
    except CorruptMessage:
        raise
    except Exception as error:  # NumPy's and zipfile's readers raise almost any kind, depending on the damage
        raise CorruptMessage(f"the bytes are not a snapshot: {error}") from error


def _palette(array: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.uint8]] | None:
    """Return the different values of an array and which of them each entry has, if there are few."""
    if array.dtype.kind != "f" or array.size < _PEEK or np.unique(array[:_PEEK]).size > _MOST_VALUES // 2:
        return None
    values = np.unique(array)
    if values.size > _MOST_VALUES:
        return None
    return values, np.searchsorted(values, array).astype(np.uint8)


def _write(archive: zipfile.ZipFile, name: str, array: npt.NDArray[np.generic]) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    member = zipfile.ZipInfo(f"{name}.npy")  # with a fixed date, so that equal states have equal bytes
    member.compress_type = zipfile.ZIP_STORED if array.dtype.kind == "f" else zipfile.ZIP_DEFLATED
    archive.writestr(member, buffer.getvalue())
