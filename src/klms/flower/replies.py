"""The replies of one round of `Compressed`: who was asked, what came back, and what of it counts."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from klms.compressors.base import Compressor, Learner, check_decoded
from klms.errors import CorruptMessage, KLMSError, SideInformationMismatch
from klms.flower import reply_checks
from klms.flower.frame import MessageFrame, read_frame
from klms.flower.model import Array as NumPyArray
from klms.flower.model import DTypes, Model, check_finite
from klms.flower.outcomes import CAUSES, cause_of, cause_of_failure
from klms.flower.request import PAYLOAD, RECORD, CompressionRequest

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Expected:
    """What one message asked for."""

    frame: MessageFrame
    request: CompressionRequest
    model: Model
    coder: tuple[Compressor, Learner] | None
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
    def signature(self) -> reply_checks.Signature:
        """What must be alike in all replies of a round."""
        return reply_checks.signature(self.reply.content, self.name, self.dtypes)

    def decode(self, step: float) -> None:
        """Put the client's arrays in the place of the payload, and learn from its message."""
        arrays, expected = self.arrays, self.expected
        if self.payload_bytes and expected.coder is not None:
            compressor, learner = expected.coder
            request = expected.request
            decoded = check_decoded(compressor.decode(self.message, request.side, key=request.key))
            arrays = expected.model.apply(decoded.vector * np.float32(step), self.dtypes, arrays)
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
    asked: int = 0
    expected: dict[int, dict[int, Expected]] = field(default_factory=dict)
    """Replies that have not come yet, by node and by number of the message."""
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(("ok", *CAUSES, "uncompressed"), 0)))
    payload_bytes: int = 0
    """Bytes of the payloads that count."""
    parameters: int = 0
    """Parameters that those payloads update."""

    def ask(self, node: int, expected: Expected) -> None:
        """Note that a message went out."""
        self.asked += 1
        self.expected.setdefault(node, {})[expected.frame.client] = expected

    def receive(self, replies: Iterable[Message], weight: str | None) -> list[Message]:
        """Return the replies for the strategy: decoded those that count, unchanged those that report a failure.

        A strategy of Flower aggregates all arrays at once, so they must all be in memory. Nothing else is: frames and
        heads are read first, to see what most replies look like, and each message is decoded, learned from and dropped.
        """
        opened, failed, came = [], [], 0
        for reply in replies:
            came += 1
            if reply.has_error():
                self.counts[cause_of_failure(reply.error.code)] += 1
                failed.append(reply)
                continue
            try:
                opened.append(self._open(reply))
            except KLMSError as error:
                self._refuse(reply, error)
        usual = reply_checks.most_common(((one.signature, one.reply.content) for one in opened), weight)
        counted = []
        for one in opened:
            try:
                reply_checks.check(one.reply.content, one.signature, usual, weight)
                one.decode(self.step)
            except KLMSError as error:
                self._refuse(one.reply, error)
                continue
            counted.append(one.reply)
            self.counts["ok"] += 1
            self.payload_bytes += one.payload_bytes
            if one.payload_bytes:
                self.parameters += one.expected.model.size
            else:
                self.counts["uncompressed"] += 1
        self.counts["missing"] += max(0, self.asked - came)
        self.expected.clear()
        return [*counted, *failed]

    @property
    def bits_per_parameter(self) -> float:
        """Bits per parameter of the payloads that count."""
        return 8 * self.payload_bytes / self.parameters if self.parameters else 0.0

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
            return Opened(reply, some, stock, [array.dtype for array in arrays.values()], arrays)
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
        if len(record) != len(arrays):
            raise SideInformationMismatch("there are arrays that the model does not have")
        model.check(arrays)
    except Exception as error:  # NumPy's reader of foreign bytes raises errors of every kind
        raise SideInformationMismatch(f"there is neither a payload of klms nor the model's arrays: {error}") from error
    check_finite(arrays)
    return name, arrays
