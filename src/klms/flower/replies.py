"""The replies of one round: who was asked, what came, and what of it counts."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from klms.codec import CorruptMessage, KLMSError, SideInformationMismatch
from klms.compressors.base import Compressor, Vector, reasonable
from klms.flower import screen
from klms.flower.frame import CAUSES, Ticket, cause, claimed_client, failure
from klms.flower.model import Array as NumPyArray
from klms.flower.model import Model
from klms.flower.order import PAYLOAD, RECORD, Order

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Expected:
    """What one message asked for."""

    ticket: Ticket
    order: Order
    model: Model
    compressor: Compressor | None
    """None where the model has nothing to compress."""

    def read(self, payload: bytes, step: float) -> tuple[dict[str, NumPyArray], bytes, Vector | None]:
        """The client's arrays, and the message of the scheme with what was decoded from it."""
        dtypes, kept, message = self.model.read(self.ticket.open(payload))
        if self.compressor is None:
            if message:
                raise CorruptMessage("there are bytes after the arrays")
            return dict(kept), message, None
        vector = reasonable(self.compressor.decode(message, self.order.side, key=self.order.key))
        arrays = self.model.apply(vector if step == 1 else vector * np.float32(step), dtypes, kept)
        _check_finite(arrays)
        return arrays, message, vector


@dataclass(frozen=True)
class Opened:
    """A reply with arrays in it again, and what it adds to the round if it counts."""

    reply: Message
    parameters: int
    payload_bytes: int = 0
    """0: the client has no mod."""
    message: bytes = b""
    vector: Vector | None = None


@dataclass
class Round:
    """Filled when messages go out, and emptied when replies come in."""

    step: float = 1.0
    asked: int = 0
    expected: dict[int, list[Expected]] = field(default_factory=dict)
    """By node."""
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(("ok", *CAUSES, "uncompressed"), 0)))
    counting: list[Opened] = field(default_factory=list)

    def ask(self, node: int, expected: Expected) -> None:
        """A message went out."""
        self.asked += 1
        self.expected.setdefault(node, []).append(expected)

    def sort(self, replies: Sequence[Message], weighted_by: str | None) -> tuple[list[Message], list[Message]]:
        """Those that count, and those that say that the client failed."""
        opened, failed = [], []
        for reply in replies:
            if reply.has_error():
                self.counts[failure(reply.error.code)] += 1
                failed.append(reply)
                continue
            try:
                opened.append(self._open(reply))
            except KLMSError as error:
                self._refuse(reply, error)
        usual = screen.usual([one.reply.content for one in opened], weighted_by)
        for one in opened:
            try:
                screen.check(one.reply.content, usual, weighted_by)
            except KLMSError as error:
                self._refuse(one.reply, error)
            else:
                self.counting.append(one)
        self.counts["ok"] = len(self.counting)
        self.counts["uncompressed"] = sum(one.payload_bytes == 0 for one in self.counting)
        self.counts["missing"] += max(0, self.asked - len(replies))
        return [one.reply for one in self.counting], failed

    @property
    def payload_bytes(self) -> int:
        """Of the replies that count."""
        return sum(one.payload_bytes for one in self.counting)

    @property
    def bits_per_parameter(self) -> float:
        """Of the payloads among them."""
        parameters = sum(one.parameters for one in self.counting if one.payload_bytes)
        return 8 * self.payload_bytes / parameters if parameters else 0.0

    def learned(self) -> tuple[list[bytes], list[Vector]]:
        """The messages that count, and what was decoded from them."""
        pairs = [(one.message, one.vector) for one in self.counting if one.vector is not None]
        return [message for message, _ in pairs], [vector for _, vector in pairs]

    def _refuse(self, reply: Message, error: KLMSError) -> None:
        self.counts[cause(error)] += 1
        log.warning("klms: the reply of node %d does not count: %s", reply.metadata.src_node_id, error)

    def _open(self, reply: Message) -> Opened:
        """Put the arrays back in the place of the payload."""
        waiting = self.expected.get(reply.metadata.src_node_id)
        if not waiting:
            raise SideInformationMismatch("nothing was asked of this node, or it has answered already")
        record = reply.content.config_records.get(RECORD)
        if record is None:  # a client without the mod
            model = waiting.pop(0).model
            _put(reply, *_stock_arrays(reply.content, model))
            return Opened(reply, model.size)
        payload, name = record.get(PAYLOAD), record.get("arrays")
        if not isinstance(payload, bytes) or not isinstance(name, str) or name in reply.content:
            raise CorruptMessage("the record of klms does not hold a payload and the name of its arrays")
        numbers = [expected.ticket.client for expected in waiting]
        client = claimed_client(payload)
        expected = waiting.pop(numbers.index(client) if client in numbers else 0)
        arrays, message, vector = expected.read(payload, self.step)
        _put(reply, name, arrays)
        return Opened(reply, expected.model.size, len(payload), message, vector)


def _put(reply: Message, name: str, arrays: dict[str, NumPyArray]) -> None:
    others = {key: item for key, item in reply.content.items() if key not in (RECORD, name)}
    reply.content = RecordDict({name: ArrayRecord({k: Array(np.asarray(a)) for k, a in arrays.items()}), **others})


def _stock_arrays(content: RecordDict, model: Model) -> tuple[str, dict[str, NumPyArray]]:
    """What a client without the mod sent, in the order of the model."""
    try:
        ((name, record),) = content.array_records.items()
        arrays = {key: np.asarray(record[key].numpy()) for key in model.arrays if key in record}
        if len(record) != len(arrays):
            raise ValueError("there are arrays that the model has not")
        model.difference(arrays)
    except Exception as error:  # NumPy's reader of foreign bytes raises whatever it meets
        raise SideInformationMismatch(f"there is no payload of klms, nor the model's arrays: {error}") from error
    _check_finite(arrays)
    return name, arrays


def _check_finite(arrays: dict[str, NumPyArray]) -> None:
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CorruptMessage(f"{name} is not finite")
