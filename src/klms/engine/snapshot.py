"""A whole state as bytes for a client, losslessly and compactly: masks average to few different probabilities.

A NumPy archive. A vector of floating-point numbers with at most 256 different values is written as these values and an
index of one byte each. Indices are deflated without a search for repeated strings, since they have none: that takes a
tenth of the time and a tenth fewer bytes. Integers are deflated, other numbers are not, since that saves nothing.
"""

import io
import zipfile
import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from klms.errors import CorruptMessage
from klms.methods.state import State
from klms.numerics.archive import read_arrays

_VALUES, _INDICES = "values.", "packed."
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
                    _write(archive, f"{_INDICES}{group}.{name}", _packed(palette[1]), packed=True)
    return buffer.getvalue()


def read_snapshot(data: bytes, like: State) -> State:
    """Undo `write_snapshot`; `like` is a state of the same method, whose size bounds what is unpacked."""
    most = most_bytes([*like.shared.values(), *like.private.values()])
    stored = read_arrays(io.BytesIO(data), most)
    try:
        found = {name: array for name, array in stored.items() if not name.startswith((_VALUES, _INDICES))}
        indexed = [name.removeprefix(_INDICES) for name in stored if name.startswith(_INDICES)]
        for name in indexed:
            found[name] = _indexed(stored[_VALUES + name], stored[_INDICES + name], most)
            most -= found[name].nbytes
        groups: dict[str, dict[str, npt.NDArray[np.generic]]] = {"shared": {}, "private": {}}
        for name, array in found.items():
            group, _, rest = name.partition(".")
            if rest:
                groups[group][rest] = array
        state = State(int(np.asarray(found["round"]).item()), groups["shared"], groups["private"])
        for name, array in like.shared.items():
            same = state.shared[name].dtype == array.dtype and state.shared[name].shape == array.shape
            if array.dtype.kind == "f" and not same:  # side information may change its shape, parameters may not
                raise CorruptMessage(f"the snapshot is not of this model: its {name} has another shape or type")
        return state
    except CorruptMessage:
        raise
    except Exception as error:  # what is missing or has a wrong shape shows in almost any kind of error
        raise CorruptMessage(f"the bytes are not a snapshot: {error}") from error


def most_bytes(arrays: Iterable[npt.NDArray[np.generic]]) -> int:
    """Return to how many bytes an archive of arrays like these may unpack; block maps are larger than at first."""
    return 4 * sum(array.nbytes for array in arrays) + _OVERHEAD


def _packed(indices: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS, strategy=zlib.Z_RLE)
    return np.frombuffer(deflate.compress(indices.tobytes()) + deflate.flush(), dtype=np.uint8)


def _indexed(values: npt.NDArray[np.generic], packed: npt.NDArray[np.generic], most: int) -> npt.NDArray[np.generic]:
    """Return the entries that the packed indices stand for, which take at most `most` bytes."""
    if values.ndim != 1 or packed.dtype != np.uint8:  # with rows for values, few bytes would become very many
        raise CorruptMessage("the snapshot has no table of values")
    inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    indices = inflate.decompress(packed.tobytes(), max(most // values.itemsize, 1))  # 0 would be no limit
    if not inflate.eof or inflate.unused_data:
        raise CorruptMessage("the indices of the snapshot are cut off, or more than this model has")
    entries: npt.NDArray[np.generic] = values[np.frombuffer(indices, dtype=np.uint8)]
    return entries


def _palette(array: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.uint8]] | None:
    """Return the different values of a vector and which of them each entry has, if there are few."""
    if array.ndim != 1 or array.dtype.kind != "f" or array.dtype.itemsize > 8 or array.size < _PEEK:
        return None
    bits = array.view(f"u{array.dtype.itemsize}")  # as numbers, 0 and -0 would be the same value
    if np.unique(bits[:_PEEK]).size > _MOST_VALUES // 2:
        return None
    values = np.unique(bits)
    if values.size > _MOST_VALUES:
        return None
    return values.view(array.dtype), np.searchsorted(values, bits).astype(np.uint8)


def _write(archive: zipfile.ZipFile, name: str, array: npt.NDArray[np.generic], *, packed: bool = False) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    member = zipfile.ZipInfo(f"{name}.npy")  # with a fixed date, so that equal states have equal bytes
    member.compress_type = zipfile.ZIP_STORED if packed or array.dtype.kind == "f" else zipfile.ZIP_DEFLATED
    archive.writestr(member, buffer.getvalue())
