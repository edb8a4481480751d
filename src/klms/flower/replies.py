"""The replies of one round of `Compressed`: who was asked, what came back, and what of it counts.

What strategies take for granted is checked here, so that one odd client does not spoil the round for all.
"""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from klms.compressors.base import Compressor, SideLearner, check_decoded
from klms.errors import CorruptMessage, KLMSError, SideInformationMismatch
from klms.flower.frame import CAUSES, MessageFrame, cause_of, cause_of_failure, read_frame
from klms.flower.model import Array as NumPyArray
from klms.flower.model import DTypes, Model, check_finite
from klms.flower.request import PAYLOAD, RECORD, CompressionRequest

log = logging.getLogger("flwr")
_LARGEST_WEIGHT = 1e15  # so that sums of weights stay finite


@dataclass(frozen=True)
class Expected:
    """What one message asked for."""

    frame: MessageFrame
    request: CompressionRequest
    model: Model
    coder: tuple[Compressor, SideLearner] | None
    """None if the model has nothing to compress."""


@dataclass(frozen=True)
class Opened:
    """A reply whose frame and head are sound; its message is not decoded yet."""

    reply: Message
    expected: Expected
    name: str
    """Name of the `ArrayRecord` that the payload replaces."""
    dtypes: DTypes
    arrays: dict[str, NumPyArray]
    """Arrays that were sent unchanged: all of them, from a client without the mod."""
    message: bytes = b""
    payload_bytes: int = 0
    """Zero for a client without the mod."""

    @property
    def signature(self) -> tuple[tuple[str, ...], ...]:
        """Names, types and lengths of what the reply holds: aggregation takes them from one reply for all."""
        records = self.reply.content.metric_records
        metrics = [
            tuple(f"{name}:{len(value) if isinstance(value, list) else 0}" for name, value in sorted(record.items()))
            for record in records.values()
        ]
        return (tuple(records), *metrics, (self.name, *(f"{name}:{kind}" for name, kind in self.dtypes.items())))

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

    def decode(self, step: float) -> None:
        """Put the client's arrays in the place of the payload, and learn from its message."""
        arrays, request = self.arrays, self.expected.request
        if self.payload_bytes and self.expected.coder is not None:
            compressor, learner = self.expected.coder
            decoded = check_decoded(compressor.decode(self.message, request.side, key=request.key))
            arrays = self.expected.model.apply(decoded.vector * np.float32(step), self.dtypes, arrays)
            learner.add(decoded)
        elif self.message:
            raise CorruptMessage("the payload has bytes after the arrays")
        others = {key: item for key, item in self.reply.content.items() if key not in (RECORD, self.name)}
        record = ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})
        self.reply.content = RecordDict({self.name: record, **others})


@dataclass
class Round:
    """Filled when messages go out, and used up when replies come in."""

    step: float = 1.0
    expected: defaultdict[int, dict[int, Expected]] = field(default_factory=lambda: defaultdict(dict))
    """Replies that have not come yet, by node and by number of the message."""
    unasked: set[int] = field(default_factory=set)
    """Nodes whose messages pass without compression."""
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(("ok", *CAUSES, "uncompressed"), 0)))
    payload_bytes: int = 0
    """Bytes of the payloads and of the uncompressed arrays that count."""
    parameters: int = 0
    """Parameters that those update."""

    def receive(self, replies: Iterable[Message], weight: str | None) -> list[Message]:
        """Return the replies for the strategy: decoded if they count, unchanged if they report a failure.

        A strategy of Flower aggregates all arrays at once, so they must all be in memory. Nothing else is: frames and
        heads are read first, to see what most replies look like, and each message is decoded, learned from and dropped.
        """
        opened, failed, counted, unanswered = [], [], [], sum(map(len, self.expected.values()))
        for reply in replies:
            unanswered -= 1
            if reply.has_error():
                self.counts[cause_of_failure(reply.error.code)] += 1
                failed.append(reply)
                continue
            if reply.metadata.src_node_id in self.unasked:
                self._let_pass(reply)
                counted.append(reply)
                continue
            try:
                opened.append(self._open(reply))
            except KLMSError as error:
                self._refuse(reply, error)
        signatures = Counter(one.signature for one in opened)
        weighted = {one.signature for one in opened if weight is None or one.weights(weight)}
        usual = max(signatures, key=lambda which: (signatures[which], which in weighted), default=None)
        for one in opened:
            try:
                if one.signature != usual:
                    raise SideInformationMismatch("its records, metrics or types differ from those of most clients")
                one.check_metrics(weight)
                one.decode(self.step)
            except KLMSError as error:
                self._refuse(one.reply, error)
                continue
            counted.append(one.reply)
            self.counts["ok"] += 1
            self.counts["uncompressed"] += not one.payload_bytes
            self.payload_bytes += one.payload_bytes or sum(array.nbytes for array in one.arrays.values())
            self.parameters += one.expected.model.size
        self.counts["missing"] += max(0, unanswered)
        self.expected.clear()
        return [*counted, *failed]

    def _let_pass(self, reply: Message) -> None:
        arrays = [array for record in reply.content.array_records.values() for array in record.values()]
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
        record = reply.content.config_records.get(RECORD)
        if record is None:
            stock, arrays = _stock_arrays(reply.content, some.model)
            del waiting[some.frame.client]
            return Opened(reply, some, stock, {key: array.dtype for key, array in arrays.items()}, arrays)
        payload, name = record.get(PAYLOAD), record.get("arrays")
        if not isinstance(payload, bytes) or not isinstance(name, str) or name in reply.content:
            raise CorruptMessage("the record of klms does not hold a payload and the name of its arrays")
        frame, head, message = read_frame(payload)
        expected = waiting.get(frame.client, some)
        expected.frame.check(frame)
        del waiting[frame.client]
        return Opened(reply, expected, name, *expected.model.read_head(head), message, len(payload))


def _stock_arrays(content: RecordDict, model: Model) -> tuple[str, dict[str, NumPyArray]]:
    """Return what a client without the mod sent, in the order of the model."""
    try:
        ((name, record),) = content.array_records.items()
        arrays = {key: np.asarray(record[key].numpy()) for key in model.arrays if key in record}
        if len(record) != len(arrays) or not arrays:
            raise SideInformationMismatch("there are arrays that the model does not have, or none")
        model.check(arrays, partial=True)
    except Exception as error:  # NumPy's reader of foreign bytes raises errors of every kind
        raise SideInformationMismatch(f"there is neither a payload of klms nor the model's arrays: {error}") from error
    check_finite(arrays)
    return name, arrays
