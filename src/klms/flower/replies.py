"""The replies of one round of `Compressed`: who was asked, what came back, and what of it counts.

What strategies take for granted is checked here, so that one odd client does not spoil the round for all.
"""

import logging
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from klms.compressors.base import Compressor, SideLearner, check_decoded
from klms.errors import CorruptMessage, InvalidArgument, KLMSError, SideInformationMismatch
from klms.flower.frame import CAUSES, MessageFrame, cause_of, cause_of_failure, read_frame
from klms.flower.history import history_for
from klms.flower.model import Array as NumPyArray
from klms.flower.model import DTypes, Model, check_finite
from klms.flower.records import Places, answers, gathered, read, scattered
from klms.flower.request import PAYLOAD, RECORD, CompressionRequest
from klms.flower.sealing import ServerKey
from klms.methods.limits import MessageBound

log = logging.getLogger("flwr")
_LARGEST_WEIGHT = 1e15  # so that sums of weights stay finite
CLIPPED, OVERWEIGHT = "clipped", "overweight"
"""Replies that count, but less than they wanted to."""
COUNTED = ("ok", *CAUSES, "uncompressed", CLIPPED, OVERWEIGHT, "undone")
"""What a round of `Compressed` counts."""


@dataclass(frozen=True)
class Expected:
    """What one message asked for."""

    frame: MessageFrame
    request: CompressionRequest
    model: Model
    places: Places
    """Where the arrays of the model are among the records of the message."""
    coder: tuple[Compressor, SideLearner] | None
    """None if the model has nothing to compress."""
    last_step: Mapping[str, NumPyArray] = field(default_factory=dict)
    """What clients may know of the last step of the model, by array."""

    @cached_property
    def records(self) -> tuple[str, ...]:
        """Names of the message's records, in their order."""
        return tuple(dict.fromkeys(record for record, _ in self.places.values()))


@dataclass(frozen=True)
class Opened:
    """A reply whose frame and head are sound; its message is not decoded yet."""

    reply: Message
    expected: Expected
    plain: dict[str, dict[str, NumPyArray]]
    """Arrays that came as they are, by record."""
    is_answer: bool
    """Whether those are arrays of the model, all or some."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names in the reply of the records that are in the payload."""
    dtypes: DTypes = field(default_factory=dict)
    """Types of the arrays in the payload; the client may have left out some of the model's."""
    unchanged: dict[str, NumPyArray] = field(default_factory=dict)
    """Arrays of the payload that are not in its message."""
    message: bytes = b""
    payload_bytes: int = 0
    """Zero for a client without the mod."""

    @cached_property
    def model(self) -> Model:
        """The part of the model that the payload updates."""
        return self.expected.model.only(self.dtypes)

    @property
    def signature(self) -> tuple[tuple[str, ...], ...]:
        """Names, types and sizes of what the reply holds: aggregation takes them from one reply for all."""
        metrics = [
            (which, *(f"{name}:{len(v) if isinstance(v, list) else 0}" for name, v in sorted(record.items())))
            for which, record in self.reply.content.metric_records.items()
        ]
        arrays = {which: [f"{n}:{a.dtype}:{a.shape}" for n, a in own.items()] for which, own in self.plain.items()}
        for name, dtype in self.dtypes.items():
            record, own = self.expected.places[name]
            described = f"{own}:{dtype}:{self.expected.model.arrays[name].shape}"
            arrays.setdefault(self.names[record], []).append(described)
        return (*metrics, *((which, *arrays[which]) for which in sorted(arrays)))

    @property
    def bytes_and_parameters(self) -> tuple[int, int]:
        """Size of what came, and how many parameters it updates."""
        plain = [array for own in self.plain.values() for array in own.values()]
        size = self.payload_bytes + sum(array.nbytes for array in plain)
        return size, sum(array.size for array in plain) + (self.model.size if self.payload_bytes else 0)

    def weights(self, key: str) -> list[object]:
        """Return the values of the metric by which the strategy weights clients."""
        return [record[key] for record in self.reply.content.metric_records.values() if key in record]

    def check_metrics(self, weight: str | None) -> None:
        """Raise an error if a metric would spoil an average."""
        for record in self.reply.content.metric_records.values():
            for name, value in record.items():
                if not all(map(math.isfinite, value if isinstance(value, list) else [value])):
                    raise CorruptMessage(f"{name} is not finite")
        if weight is None:
            return
        found = self.weights(weight)
        if len(found) != 1 or not isinstance(found[0], (int, float)) or not 0 <= found[0] <= _LARGEST_WEIGHT:
            raise CorruptMessage(f"{weight} must be one number from 0 to {_LARGEST_WEIGHT:g}, got {found}")

    def decode(self, step: float) -> float:
        """Put the client's arrays in the place of the payload, and learn from its message; return its update's norm."""
        if not self.payload_bytes:
            return self.expected.model.distance(self._trained()) if self.is_answer else 0.0
        model, request, arrays = self.model, self.expected.request, self.unchanged
        if model.layout.d:
            compressor, learner = self._coder(model)
            side = {**request.side, **history_for(model.layout, self.expected.last_step)}
            decoded = check_decoded(compressor.decode(self.message, side, key=request.key))
            vector = decoded.vector.astype(np.float32, copy=bool(request.side))  # a learner needs it unchanged
            vector *= np.float32(step)
            arrays = model.apply(vector, self.dtypes, arrays)
            learner.add(decoded)
        elif self.message:
            raise CorruptMessage("the payload has bytes after the arrays")
        self._put(arrays)
        return model.distance(arrays)

    def clip(self, factor: float) -> None:
        """Scale the update of the decoded reply."""
        self._put(self.expected.model.part_of_the_way(self._trained(), factor))

    def weigh(self, key: str, weight: float) -> None:
        """Reduce the weight that the client claims."""
        for record in self.reply.content.metric_records.values():
            if key in record:
                record[key] = int(weight) if isinstance(record[key], int) else weight

    @property
    def _answers(self) -> Mapping[str, str]:
        """Name in the reply of the record that answers each of the message's."""
        return self.names or answers(self.expected.records, self.reply.content.array_records)

    def _trained(self) -> dict[str, NumPyArray]:
        """Return the arrays of the model in the reply."""
        content = self.reply.content.array_records
        records = {
            ours: {key: read(array) for key, array in content[own].items()} for ours, own in self._answers.items()
        }
        return gathered(self.expected.places, records)

    def _put(self, arrays: Mapping[str, NumPyArray]) -> None:
        """Put arrays of the model in the place of the payload, or of those that came."""
        names = self._answers
        records = {names[record]: own for record, own in scattered(self.expected.places, arrays).items()}
        others = {key: item for key, item in self.reply.content.items() if key not in (RECORD, *records)}
        self.reply.content = RecordDict({**records, **others})

    def _coder(self, model: Model) -> tuple[Compressor, SideLearner]:
        """Return the compressor of the whole model, or one for the part of it that was sent, which teaches nothing."""
        if model is self.expected.model and self.expected.coder is not None:
            return self.expected.coder
        if self.expected.request.needs_whole_model:
            raise CorruptMessage("the payload leaves arrays out, which this scheme cannot")
        return self.expected.request.compressor(model.layout, None), SideLearner({})


@dataclass
class Round:
    """Filled when messages go out, and used up when replies come in."""

    step: float = 1.0
    influence: float = 0.0
    """How many times the median client's weight, or its weight times its norm, a client may have; 0 for any."""
    key: ServerKey | None = None
    """Opens the payloads, if they are sealed."""
    expected: defaultdict[int, dict[int, Expected]] = field(default_factory=lambda: defaultdict(dict))
    """Replies that have not come yet, by node and by number of the message."""
    unasked: set[int] = field(default_factory=set)
    """Nodes whose messages pass without compression."""
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTED, 0)))
    payload_bytes: int = 0
    """Bytes of the payloads and of the uncompressed arrays that count."""
    parameters: int = 0
    """Parameters that those update."""

    def receive(self, replies: Iterable[Message], weight: str | None) -> list[Message]:
        """Return the replies for the strategy: decoded if they count, unchanged if they report a failure.

        A strategy of Flower aggregates all arrays at once, so they must all be in memory. Nothing else is: frames and
        heads are read first, to see what most replies look like, and each message is decoded, learned from and dropped.
        """
        opened, failed, counted = [], [], []
        unanswered = Counter({node: len(asked) for node, asked in self.expected.items()})
        for reply in replies:
            unanswered[reply.metadata.src_node_id] -= 1
            if reply.has_error():
                self.counts[cause_of_failure(reply.error.code)] += 1
                failed.append(reply)
                continue
            try:
                if reply.metadata.src_node_id in self.unasked:
                    self._let_pass(reply)
                    counted.append(reply)
                else:
                    opened.append(self._open(reply))
            except KLMSError as error:
                self._refuse(reply, error)
        signatures = Counter(one.signature for one in opened)
        weighted = {one.signature for one in opened if weight is None or one.weights(weight)}
        answering = {one.signature for one in opened if one.is_answer}
        usual = max(signatures, key=lambda s: (signatures[s], s in answering, s in weighted), default=None)
        bound = _bound_among([one for one in opened if one.signature == usual])
        decoded: list[tuple[Opened, float]] = []
        for one in opened:
            try:
                if one.signature != usual:
                    raise SideInformationMismatch("its records, metrics or types differ from those of most clients")
                one.check_metrics(weight)
                bound.check(one.message)
                decoded.append((one, one.decode(self.step)))
            except KLMSError as error:
                self._refuse(one.reply, error)
                continue
            counted.append(one.reply)
            self.counts["ok"] += 1
            self.counts["uncompressed"] += not one.payload_bytes
            size, parameters = one.bytes_and_parameters
            self.payload_bytes += size
            self.parameters += parameters
        self._limit(decoded, weight)
        self.counts["missing"] += (+unanswered).total()  # a node that answers twice does not stand in for another
        self.expected.clear()
        return [*counted, *failed]

    def _limit(self, decoded: Sequence[tuple[Opened, float]], key: str | None) -> None:
        """Reduce weights, and then updates, that are out of all proportion to the median client's."""
        if not self.influence or not decoded:
            return
        weights = [1.0 if key is None else float(one.weights(key)[0]) for one, _ in decoded]  # type: ignore[arg-type]
        most = self.influence * statistics.median_low(weights)
        for (one, _), weight in zip(decoded, weights, strict=True):
            if key is not None and weight > most:
                self.counts[OVERWEIGHT] += 1
                one.weigh(key, most)
        pulls = [min(weight, most) * norm for weight, (_, norm) in zip(weights, decoded, strict=True)]
        most = self.influence * statistics.median_low([pull for pull in pulls if pull > 0] or [0.0])
        for (one, _), pull in zip(decoded, pulls, strict=True):
            if pull > most:
                self.counts[CLIPPED] += 1
                one.clip(most / pull)

    def _let_pass(self, reply: Message) -> None:
        arrays = [array for record in reply.content.array_records.values() for array in record.values()]
        for record in reply.content.array_records.values():
            check_finite({name: _array(name, array) for name, array in record.items()})
        self.counts["ok"] += 1
        self.counts["uncompressed"] += 1
        self.payload_bytes += sum(len(array.data) for array in arrays)
        self.parameters += sum(math.prod(array.shape) for array in arrays)

    def _refuse(self, reply: Message, error: KLMSError) -> None:
        self.counts[cause_of(error)] += 1
        log.warning("klms: the reply of node %d does not count: %s", reply.metadata.src_node_id, error)

    def _open(self, reply: Message) -> Opened:
        """Check that a reply was asked for, and read everything but the message of the scheme."""
        waiting = self.expected.get(reply.metadata.src_node_id)
        if not waiting:
            raise SideInformationMismatch("this node was not asked, or it has answered already")
        some = next(iter(waiting.values()))
        plain, is_answer = _plain_arrays(reply.content, some)
        record = reply.content.config_records.get(RECORD)
        if record is None:
            if self.key is not None:
                raise SideInformationMismatch("it is not sealed: with client_secrets, every ClientApp needs the mod")
            if not any(plain.values()):
                raise SideInformationMismatch("there is neither a payload of klms nor an array")
            del waiting[some.frame.client]
            return Opened(reply, some, plain, is_answer)
        payload, named = record.get(PAYLOAD), record.get("arrays")
        names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        if not isinstance(payload, bytes):
            raise CorruptMessage("the record of klms holds no payload")
        frame, head, message = read_frame(payload if self.key is None else self.key.open(payload))
        expected = waiting.get(frame.client, some)
        expected.frame.check(frame)
        dtypes, unchanged = expected.model.read_head(head)
        sent = {expected.places[name][0] for name in dtypes}
        if not sent or not len(sent) == len(names) == len({*names} - reply.content.keys()):
            raise CorruptMessage("the record of klms does not name the records that its payload stands for")
        by_record = dict(zip([which for which in expected.records if which in sent], names, strict=True))
        del waiting[frame.client]
        return Opened(reply, expected, plain, is_answer, by_record, dtypes, unchanged, message, len(payload))


def _bound_among(opened: Sequence[Opened]) -> MessageBound:
    """Return the bound on messages that answer the same request; those of a round have one compressor."""
    coders = [one.expected.coder for one in opened if one.expected.coder is not None]
    factor = coders[0][0].message_factor if coders else 0.0
    return MessageBound(factor, [one.message for one in opened])


def _plain_arrays(content: RecordDict, expected: Expected) -> tuple[dict[str, dict[str, NumPyArray]], bool]:
    """Return the arrays that a reply holds as they are, by record, and whether they are arrays of the model.

    Those that are get the order of the model, which some strategies rely on.
    """
    plain, is_answer = {}, True
    matched = {answer: record for record, answer in answers(expected.records, content.array_records).items()}
    for which, record in list(content.array_records.items()):
        try:
            plain[which] = {name: read(array) for name, array in record.items()}
        except Exception as error:  # NumPy's reader of foreign bytes raises errors of every kind
            raise SideInformationMismatch(f"{which} does not hold arrays: {error}") from error
        check_finite(plain[which])
        try:
            found = gathered(expected.places, {matched.get(which, which): plain[which]})
            expected.model.check(found)
        except InvalidArgument:
            is_answer = False
            continue
        plain[which] = {expected.places[name][1]: array for name, array in found.items()}
        content[which] = ArrayRecord({name: record[name] for name in plain[which]})
    return plain, is_answer


def _array(name: str, array: Array) -> NumPyArray:
    try:
        return read(array)
    except Exception as error:  # NumPy's reader of foreign bytes raises errors of every kind
        raise CorruptMessage(f"{name} is not an array: {error}") from error
