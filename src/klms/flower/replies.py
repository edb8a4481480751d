"""The answers of one round of `Compressed`: which of them count, and the arrays that the strategy inside gets.

A strategy of Flower takes much for granted: that all replies have the same records, arrays and metrics, and a weight
each. One odd client would spoil the round for all, so it is left out and counted.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message, RecordDict

from klms.container import Array
from klms.errors import CorruptMessage, InvalidArgument, KLMSError, SideInformationMismatch
from klms.exchange.model import check_finite
from klms.exchange.reply import Reply
from klms.exchange.robust import Robust
from klms.exchange.server import Server
from klms.flower.phase import Answer
from klms.flower.records import ARRAYS, RECORD, answers, arrays_of, gathered, scattered
from klms.frame import cause_of
from klms.methods.limits import MessageBound
from klms.printable import printable

log = logging.getLogger("flwr")
_LARGEST_WEIGHT = 1e15  # so that sums of weights stay finite


@dataclass
class Candidate:
    """An answer that may count: everything is read but the message of the scheme."""

    answer: Answer
    plain: dict[str, dict[str, Array]]
    """Arrays that came as they are, by record."""
    names: Mapping[str, str]
    """Name in the reply of the record that answers each of the message's."""

    @property
    def message(self) -> Message:
        return self.answer.message

    @property
    def nbytes(self) -> int:
        plain = sum(array.nbytes for own in self.plain.values() for array in own.values())
        return plain + (self.answer.reply.nbytes if self.answer.reply else 0)

    @property
    def entries(self) -> int:
        """Number of parameters that the answer holds."""
        coded = self.answer.reply.model.size if self.answer.reply and self.answer.reply.dtypes else 0
        return coded + sum(array.size for own in self.plain.values() for array in own.values())

    def weights(self, key: str) -> list[object]:
        """Return the values of the metric by which the strategy weights clients."""
        return [record[key] for record in self.message.content.metric_records.values() if key in record]

    def usable(self, key: str | None) -> bool:
        """Return whether a strategy can use this answer: it has arrays, and a weight if one is needed."""
        has_arrays = any(self.plain.values()) or bool(self.answer.reply and self.answer.reply.dtypes)
        return has_arrays and (key is None or len(self.weights(key)) == 1)

    def check_weight(self, key: str | None) -> None:
        if key is None:
            return
        (weight,) = self.weights(key)
        if not isinstance(weight, (int, float)) or not 0 <= weight <= _LARGEST_WEIGHT:
            raise CorruptMessage(f"{key} must be one number from 0 to {_LARGEST_WEIGHT:g}, got {weight!r}")

    @property
    def signature(self) -> tuple[tuple[str, ...], ...]:
        """Names, types and sizes of what the answer holds: aggregation takes them from one reply for all."""
        metrics = [
            (which, *(f"{name}:{len(v) if isinstance(v, list) else 0}" for name, v in sorted(record.items())))
            for which, record in self.message.content.metric_records.items()
        ]
        arrays = {which: [f"{n}:{a.dtype}:{a.shape}" for n, a in own.items()] for which, own in self.plain.items()}
        reply = self.answer.reply
        for name, dtype in ({} if reply is None else reply.dtypes).items():
            record, own = self.answer.asked.places[name]
            described = f"{own}:{dtype}:{reply.expected.model.arrays[name].shape}" if reply else ""
            arrays.setdefault(self.names[record], []).append(described)
        return (*metrics, *((which, *arrays[which]) for which in sorted(arrays)))

    def decode(self, server: Server) -> dict[str, Array]:
        """Return the arrays of the model in this answer, as precisely as they were conveyed."""
        if self.answer.reply is not None and self.answer.reply.dtypes:
            arrays = self.answer.reply.decode(server.scale)
            server.count(self.answer.reply)
            return arrays
        if not self.answer.asked.places:
            return {}
        try:
            records = {ours: self.plain[own] for ours, own in self.names.items()}
            return gathered(self.answer.asked.places, records)
        except InvalidArgument:
            return {}

    def put(self, arrays: Mapping[str, Array]) -> None:
        """Put arrays of the model in the place of the payload, or of those that came."""
        records = {self.names[record]: own for record, own in scattered(self.answer.asked.places, arrays).items()}
        others = {name: item for name, item in self.message.content.items() if name not in (RECORD, *records)}
        self.message.content = RecordDict({**records, **others})


@dataclass
class Received:
    """The answers of a part of a round that count."""

    counts: Counter[str]
    messages: list[Message] = field(default_factory=list)
    nbytes: int = 0
    """Bytes of the payloads and of the uncompressed arrays that count."""
    entries: int = 0
    """Parameters that those hold."""

    def take(self, found: Sequence[Answer], server: Server, key: str | None, robust: Robust | None) -> None:
        """Decode the answers to a training request that count; strategies want all their arrays in memory."""
        candidates = self._candidates(found)
        usable = [one for one in candidates if one.usable(key)]
        signatures = Counter(one.signature for one in usable)
        usual = max(signatures, key=lambda signature: signatures[signature], default=None)
        bound = _bound_among([one.answer.reply for one in usable if one.signature == usual])
        decoded: list[tuple[Candidate, dict[str, Array]]] = []
        for one in candidates:
            try:
                if not one.usable(key):
                    raise SideInformationMismatch("it has no arrays, or no metric to weight them by")
                if one.signature != usual:
                    raise SideInformationMismatch("its records, arrays or metrics differ from those of most clients")
                one.check_weight(key)
                if one.answer.reply is not None:
                    bound.check(one.answer.reply.message)
                decoded.append((one, one.decode(server)))
            except KLMSError as error:
                self._refuse(one.message, error)
        if robust is not None:
            self._make_robust(decoded, robust)
        for one, arrays in decoded:
            self._count(one)
            if arrays:
                one.put(arrays)
            self.messages.append(one.message)

    def pass_on(self, found: Sequence[Answer], server: Server) -> None:
        """Decode the answers to an evaluation request; there, arrays are not expected but may be there."""
        for one in self._candidates(found):
            try:
                arrays = one.decode(server) if one.answer.reply and one.answer.reply.dtypes else {}
            except KLMSError as error:
                self._refuse(one.message, error)
                continue
            one.put(arrays)
            self.nbytes += one.nbytes
            self.entries += one.entries
            self.messages.append(one.message)

    def _candidates(self, found: Sequence[Answer]) -> list[Candidate]:
        candidates: list[Candidate] = []
        for answer in found:
            try:
                candidates.append(_candidate(answer))
            except KLMSError as error:
                self._refuse(answer.message, error)
        return candidates

    def _make_robust(self, decoded: list[tuple[Candidate, dict[str, Array]]], robust: Robust) -> None:
        models = [one.answer.reply.expected.model for one, _ in decoded if one.answer.reply]
        if not models or len({frozenset(arrays) for _, arrays in decoded}) > 1:
            return
        made, clipped = robust.average_arrays(models[0], [arrays for _, arrays in decoded])
        decoded[:] = [(one, made) for one, _ in decoded]
        self.counts["clipped"] += clipped

    def _count(self, one: Candidate) -> None:
        self.counts["ok"] += 1
        coded = one.answer.reply is not None and bool(one.answer.reply.dtypes)
        self.counts["uncompressed"] += not coded
        self.nbytes += one.nbytes
        self.entries += one.entries

    def _refuse(self, message: Message, error: KLMSError) -> None:
        self.counts[cause_of(error)] += 1
        log.warning("klms: the reply of node %d does not count: %s", message.metadata.src_node_id, printable(error))


def _bound_among(replies: Sequence[Reply | None]) -> MessageBound:
    """Return the bound on messages that answer the same request; those of a round have one compressor."""
    coded = [reply for reply in replies if reply is not None and reply.expected.coder is not None]
    factor = coded[0].expected.coder[0].message_factor if coded and coded[0].expected.coder else 0.0
    return MessageBound(factor, [reply.message for reply in coded])


def _candidate(answer: Answer) -> Candidate:
    """Read the arrays that a reply holds as they are; those of the model get its order, which strategies rely on."""
    content, places = answer.message.content, answer.asked.places
    records = list(dict.fromkeys(record for record, _ in places.values()))
    names = _names(answer, records)
    matched = {own: record for record, own in names.items()}
    plain: dict[str, dict[str, Array]] = {}
    for which, record in list(content.array_records.items()):
        try:
            plain[which] = arrays_of(record)
        except Exception as error:  # NumPy's reader of foreign bytes raises errors of every kind
            raise SideInformationMismatch(f"{which} does not hold arrays: {error}") from error
        check_finite(plain[which])
        try:
            found = gathered(places, {matched.get(which, which): plain[which]})
        except InvalidArgument:
            continue
        plain[which] = {places[name][1]: array for name, array in found.items()}
        content[which] = ArrayRecord({name: record[name] for name in plain[which]})
    return Candidate(answer, plain, names)


def _names(answer: Answer, records: Sequence[str]) -> dict[str, str]:
    """Return the name in the reply of the record that answers each of the message's."""
    content, reply = answer.message.content, answer.reply
    if reply is None or not reply.dtypes:
        return answers(records, content.array_records)
    named = content.config_records[RECORD].get(ARRAYS)
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    sent = [record for record in records if any(answer.asked.places[name][0] == record for name in reply.dtypes)]
    if len(sent) != len(names) or len({*names} - content.keys()) != len(names):
        raise CorruptMessage("the record of klms does not name the records that its payload stands for")
    return dict(zip(sent, names, strict=True))
