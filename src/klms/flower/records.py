"""All `ArrayRecord`s of a message as one dictionary of arrays: one payload carries what changed in any of them.

Flower makes a request for every object of a message, so that one payload is cheaper than one for each record.
"""

import io
from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord

from klms.errors import InvalidArgument
from klms.flower.model import Array as NumPyArray
from klms.numerics.checks import checked_shape

T = TypeVar("T")
Places = dict[str, tuple[str, str]]
"""Name of each array in the dictionary; the record that it is in, and its name there."""


def places_of(records: Mapping[str, ArrayRecord]) -> Places:
    """Name all arrays: by their own names if there is one record, otherwise with that of their record before them."""
    records = {name: record for name, record in records.items() if record}
    if len(records) == 1:
        return {name: (record, name) for record, arrays in records.items() for name in arrays}
    found = [(f"{record}/{name}", (record, name)) for record, arrays in records.items() for name in arrays]
    if len(dict(found)) < len(found):
        raise InvalidArgument("two arrays of different records have the same name")
    return dict(found)


def gathered(places: Places, records: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """Return the arrays of these records by their names in the dictionary, in its order; all of them must be in it."""
    here = {(record, name) for record, arrays in records.items() for name in arrays}
    if others := here.difference(places.values()):
        names = ", ".join(sorted(name for _, name in others)[:5])
        raise InvalidArgument(f"these arrays were not received: {names}")
    return {name: records[record][array] for name, (record, array) in places.items() if (record, array) in here}


def scattered(places: Places, arrays: Mapping[str, NumPyArray]) -> dict[str, ArrayRecord]:
    """Undo `gathered`."""
    records: dict[str, ArrayRecord] = {}
    for name, array in arrays.items():
        record, own = places[name]
        records.setdefault(record, ArrayRecord())[own] = Array(np.asarray(array))
    return records


def answers(received: Iterable[str], replied: Iterable[str]) -> dict[str, str]:
    """Return which record of a reply answers which of the message: that of its name, or the only one the only one."""
    received, replied = list(received), list(replied)
    if len(received) == len(replied) == 1:
        return {received[0]: replied[0]}
    return {name: name for name in received if name in replied}


def read(array: Array) -> NumPyArray:
    """Return what `array.numpy()` returns, but as a view of its bytes, which cannot be written to, and not a copy."""
    stream = io.BytesIO(array.data)
    version = np.lib.format.read_magic(stream)
    if array.stype != "numpy.ndarray" or version not in ((1, 0), (2, 0)):
        return np.asarray(array.numpy())
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = header(stream)
    shape = checked_shape(shape)
    if dtype.hasobject:
        raise InvalidArgument(f"arrays of {dtype} cannot be read")
    if 0 in shape:
        return np.zeros(shape, dtype=dtype)
    count = int(np.prod(shape, dtype=object))
    flat = np.frombuffer(array.data, dtype, count, offset=stream.tell())
    return flat.reshape(shape, order="F" if by_columns else "C")
