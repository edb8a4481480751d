"""All `ArrayRecord`s of a message as one dictionary of arrays: one payload carries the changes of all records.

Flower makes a request for every object of a message, so one payload is cheaper than one per record.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message

from klms.container import Array as NumPyArray
from klms.errors import InvalidArgument

T = TypeVar("T")
Places = dict[str, tuple[str, str]]
"""For the name of each array in the dictionary, the array's record and its name in that record."""

RECORD = "klms"
"""Name of our record, in requests and in replies."""
REQUEST, REPLY, MODEL, ARRAYS = "request", "reply", "model", "arrays"
"""Names of our record's entries: the bytes of the exchange, and the names of the records that they replace."""

_KEPT = "state"  # name of the array that keeps bytes in a node's context


def places_of(records: Mapping[str, Mapping[str, object]], model: str = "") -> Places:
    """Name all arrays: by their own names in the model or in the only record, elsewhere with the record as prefix."""
    filled = {name: record for name, record in records.items() if record}
    main = model or (next(iter(filled)) if len(filled) == 1 else "")
    found = [
        (name if record == main else f"{record}/{name}", (record, name))
        for record, arrays in filled.items()
        for name in arrays
    ]
    if len(dict(found)) < len(found):
        raise InvalidArgument("two arrays of different records have the same name")
    return dict(found)


def gathered(places: Places, records: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """Return the arrays of these records by the names in `places`, in that order; `places` must list every array."""
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
    """Return, for each record of the message, the record of the reply with the same name.

    If message and reply have exactly one record each, these two correspond whatever their names.
    """
    received, replied = list(received), list(replied)
    if len(received) == len(replied) == 1:
        return {received[0]: replied[0]}
    return {name: name for name in received if name in replied}


def matched(sent: Sequence[Message], replies: Iterable[Message]) -> list[tuple[int | None, Message]]:
    """Return the replies, each with the number of the message that it answers; None if it answers none.

    Replies are matched by the message that they answer, and only then by sender: Flower itself replies in place of a
    node that is gone.
    """
    nodes = {one.metadata.message_id: one.metadata.dst_node_id for one in sent if one.metadata.message_id}
    waiting: dict[int, dict[str, int]] = {}
    for number, one in enumerate(sent):
        waiting.setdefault(one.metadata.dst_node_id, {})[one.metadata.message_id or str(number)] = number
    found: list[tuple[int | None, Message]] = []
    for reply in replies:
        answered = reply.metadata.reply_to_message_id
        left = waiting.get(nodes.get(answered, reply.metadata.src_node_id), {})
        which = answered if answered in left else next(iter(left), "")
        found.append((left.pop(which, None), reply))
    return found


def kept(context: Context, name: str) -> bytes:
    """Return the bytes that `keep` has stored in a node's context; empty if there are none."""
    record = context.state.array_records.get(name)
    array = None if record is None else record.get(_KEPT)
    return b"" if array is None else array.data


def keep(context: Context, name: str, data: bytes) -> None:
    """Store bytes in a node's context, for the next message of the run."""
    context.state[name] = ArrayRecord({_KEPT: Array("uint8", (len(data),), "klms", data)})


def record_of(arrays: Mapping[str, NumPyArray]) -> ArrayRecord:
    """Return NumPy arrays as a record."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def arrays_of(record: Mapping[str, Array]) -> dict[str, NumPyArray]:
    """Undo `record_of`; raise an `InvalidArgument` if the bytes are not arrays."""
    try:
        arrays = {name: array.numpy() for name, array in record.items()}
    except Exception as error:  # NumPy's reader of foreign bytes raises errors of every kind
        raise InvalidArgument(f"these bytes are not arrays: {error}") from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise InvalidArgument("these bytes are an archive of arrays, not a single array")
    return arrays


def equal(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Return whether two records hold equal arrays, even if these are different objects."""
    return one.keys() == other.keys() and all(_same(array, other[name]) for name, array in one.items())


def _same(one: Array, other: Array) -> bool:
    described = one.dtype == other.dtype and tuple(one.shape) == tuple(other.shape) and one.stype == other.stype
    return one is other or (described and one.data == other.data)
