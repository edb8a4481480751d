"""A message that was sent, and the answer to it, with its arrays and metrics, compressed or not."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Self

from flwr.app import ArrayRecord, Message, RecordDict

from klms.container import Array
from klms.errors import CorruptMessage, InvalidArgument, SideInformationMismatch
from klms.exchange.model import check_finite
from klms.exchange.reply import Reply
from klms.exchange.server import Base, Server
from klms.flower.records import ARRAYS, RECORD, Places, answers, arrays_of, gathered, scattered

_LARGEST_WEIGHT = 1e15  # so that sums of weights stay finite


class Alike(Enum):
    """How alike the answers of a round must be for a strategy. Flower's own aggregation takes none that differ."""

    NOT = 0
    """The strategy has an `aggregate_train` of its own."""
    IN_ARRAYS = 1
    """The strategy aggregates metrics in a way of its own."""
    WHOLLY = 2


@dataclass(frozen=True)
class Asked:
    """A message that was sent."""

    message: Message
    original: RecordDict
    """Content of the message before requests replaced arrays."""
    model: str
    """Name of the record that the request stands for; empty if the arrays were sent alongside the request."""
    places: Places
    """Places of the arrays; empty if klms lets the message pass unchanged."""
    base: Base | None
    """Arrays to which the update is added; None if klms lets the message pass unchanged."""
    again: bool = False
    """Whether the message was sent because the node did not understand an earlier message."""

    @property
    def node(self) -> int:
        return self.message.metadata.dst_node_id


@dataclass(frozen=True)
class Answer:
    """An answer that has been read, except for the message of the scheme."""

    asked: Asked
    message: Message
    reply: Reply | None
    """The reply of klms; None for a node without the mod."""
    plain: Mapping[str, Mapping[str, Array]]
    """Arrays that were sent uncompressed, by record."""
    names: Mapping[str, str]
    """For each record of the message, the name of the answer's record that corresponds to it."""

    @classmethod
    def read(cls, asked: Asked, message: Message, reply: Reply | None) -> Self:
        """Read the uncompressed arrays; put arrays of the model into the model's order, as strategies expect it."""
        content, places = message.content, asked.places
        names = _names(asked, content, reply)
        matched = {own: record for record, own in names.items()}
        plain: dict[str, dict[str, Array]] = {}
        for which, record in list(content.array_records.items()):
            try:
                plain[which] = arrays_of(record)
            except InvalidArgument as error:
                if which in matched:
                    raise SideInformationMismatch(f"{which} does not hold arrays: {error}") from error
                continue  # a record of the app's own, which is left to the strategy
            if which in matched:
                check_finite_like(plain[which], asked.original.array_records[matched[which]])
            try:
                found = gathered(places, {matched.get(which, which): plain[which]})
            except InvalidArgument:
                continue
            plain[which] = {places[name][1]: array for name, array in found.items()}
            content[which] = ArrayRecord({name: record[name] for name in plain[which]})
        return cls(asked, message, reply, plain, names)

    @property
    def coded(self) -> bool:
        """Whether klms encoded arrays of the answer."""
        return self.reply is not None and bool(self.reply.dtypes)

    @property
    def plain_bytes(self) -> int:
        return sum(array.nbytes for own in self.plain.values() for array in own.values())

    @property
    def entries(self) -> int:
        """Number of parameters that the answer holds."""
        encoded = self.reply.model.size if self.reply is not None and self.coded else 0
        return encoded + sum(array.size for own in self.plain.values() for array in own.values())

    def usable(self, key: str | None) -> bool:
        """Return whether a strategy can use the answer.

        A usable answer has arrays and, if the strategy weights answers by a metric (`key`), one value of that metric.
        """
        has_arrays = any(self.plain.values()) or self.coded
        return has_arrays and len(self._weights(key)) == 1

    def weight(self, key: str | None) -> float:
        """Return the weight of a usable answer in the average; raise an error if it cannot be a weight."""
        (weight,) = self._weights(key)
        if not isinstance(weight, (int, float)) or not 0 <= weight <= _LARGEST_WEIGHT:
            raise CorruptMessage(f"{key} must be one number from 0 to {_LARGEST_WEIGHT:g}, got {weight!r}")
        return float(weight)

    def _weights(self, key: str | None) -> list[object]:
        """Return the values of the metric `key`, by which the strategy weights answers; without a key, 1."""
        records = self.message.content.metric_records.values()
        return [1.0] if key is None else [record[key] for record in records if key in record]

    def signature(self, alike: Alike) -> tuple[tuple[str, ...], ...]:
        """Return the names, types and sizes of the contents that must be the same in all answers."""
        if alike == Alike.NOT:
            return ()
        metrics = [
            (which, *(f"{name}:{len(v) if isinstance(v, list) else 0}" for name, v in sorted(record.items())))
            for which, record in self.message.content.metric_records.items()
        ]
        arrays = {which: [f"{n}:{a.dtype}:{a.shape}" for n, a in own.items()] for which, own in self.plain.items()}
        if self.reply is not None:
            for name, dtype in self.reply.dtypes.items():
                record, own = self.asked.places[name]
                described = f"{own}:{dtype}:{self.reply.expected.model.arrays[name].shape}"
                arrays.setdefault(self.names[record], []).append(described)
        described_arrays = [(which, *arrays[which]) for which in sorted(arrays)]
        return (*(metrics if alike == Alike.WHOLLY else ()), *described_arrays)

    def decode(self, server: Server, weight: float) -> dict[str, Array]:
        """Return the arrays of the model in this answer, as precisely as they were conveyed, and count their bytes.

        `weight` is the weight of the answer in the average of the round; 0 if there is no average.
        """
        server.uplink_bytes += self.plain_bytes
        if self.reply is not None and self.coded:
            return server.decode(self.reply, weight=weight)
        if self.reply is not None:
            server.uplink_bytes += self.reply.nbytes
        try:
            return gathered(self.asked.places, {record: self.plain[own] for record, own in self.names.items()})
        except InvalidArgument:
            return {}

    def put(self, arrays: Mapping[str, Array]) -> None:
        """Replace the payload, or the arrays that arrived, with these arrays of the model."""
        records = {self.names[record]: own for record, own in scattered(self.asked.places, arrays).items()}
        others = {name: item for name, item in self.message.content.items() if name not in (RECORD, *records)}
        self.message.content = RecordDict({**records, **others})


def check_finite_like(arrays: Mapping[str, Array], sent: ArrayRecord) -> None:
    """Raise an error if an entry is infinite or not a number, unless it was sent like that."""
    try:
        check_finite(arrays)
    except CorruptMessage:
        check_finite(arrays, arrays_of(sent))


def _names(asked: Asked, content: RecordDict, reply: Reply | None) -> dict[str, str]:
    """Return, for each record of the server's message, the name of the record of the answer that corresponds to it."""
    records = list(dict.fromkeys(record for record, _ in asked.places.values()))
    if reply is None or not reply.dtypes:
        return answers(records, content.array_records)
    named = content.config_records[RECORD].get(ARRAYS)
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    sent = [record for record in records if any(asked.places[name][0] == record for name in reply.dtypes)]
    if len(sent) != len(names) or len({*names} - content.keys()) != len(names):
        raise CorruptMessage("the record of klms does not name the records that its payload stands for")
    return dict(zip(sent, names, strict=True))
