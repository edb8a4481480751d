"""The replies of one round: who was asked, what came, and what of it counts."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from klms.codec import CorruptMessage, KLMSError, SideInformationMismatch
from klms.compressors.base import Compressor, Vector
from klms.flower.frame import CAUSES, Ticket, cause, failure
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
        vector = self.compressor.decode(message, self.order.side, key=self.order.key)
        scaled = vector if step == 1 else vector * np.float32(step)
        return self.model.apply(scaled, dtypes, kept), message, vector


@dataclass
class Round:
    """Filled when messages go out, and emptied when replies come in."""

    step: float = 1.0
    asked: int = 0
    expected: dict[int, list[Expected]] = field(default_factory=dict)
    """By node."""
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(("ok", *CAUSES, "uncompressed"), 0)))
    payload_bytes: int = 0
    parameters: int = 0
    messages: list[bytes] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)

    def ask(self, node: int, expected: Expected) -> None:
        """A message went out."""
        self.asked += 1
        self.expected.setdefault(node, []).append(expected)

    def sort(self, replies: Sequence[Message], weighted_by: str | None) -> tuple[list[Message], list[Message]]:
        """Those that count, with arrays in them again, and those that say that the client failed."""
        sound, failed = [], []
        for reply in replies:
            if reply.has_error():
                self.counts[failure(reply.error.code)] += 1
                failed.append(reply)
                continue
            try:
                self._open(reply)
            except KLMSError as error:
                self._refuse(reply, error)
            else:
                sound.append(reply)
        usual = Counter(_shape(reply.content) for reply in sound).most_common(1)
        counting = []
        for reply in sound:
            try:
                _check_metrics(reply.content, usual[0][0], weighted_by)
            except KLMSError as error:
                self._refuse(reply, error)
            else:
                counting.append(reply)
        self.counts["ok"] = len(counting)
        self.counts["missing"] += max(0, self.asked - len(replies))
        return counting, failed

    def _refuse(self, reply: Message, error: KLMSError) -> None:
        self.counts[cause(error)] += 1
        log.warning("klms: the reply of node %d does not count: %s", reply.metadata.src_node_id, error)

    def _open(self, reply: Message) -> None:
        """Put the arrays back in the place of the payload."""
        waiting = self.expected.get(reply.metadata.src_node_id)
        if not waiting:
            raise SideInformationMismatch("nothing was asked of this node, or it has answered already")
        expected = waiting.pop(0)
        record = reply.content.config_records.get(RECORD)
        if record is None:  # a client without the mod
            _check_arrays(reply.content, expected.model)
            self.counts["uncompressed"] += 1
            return
        payload, name = record.get(PAYLOAD), record.get("arrays")
        if not isinstance(payload, bytes) or not isinstance(name, str) or name in reply.content:
            raise CorruptMessage("the record of klms does not hold a payload and the name of its arrays")
        arrays, message, vector = expected.read(payload, self.step)
        self.payload_bytes += len(payload)
        self.parameters += expected.model.size
        if vector is not None:
            self.messages.append(message)
            self.vectors.append(vector)
        others = {key: item for key, item in reply.content.items() if key != RECORD}
        reply.content = RecordDict({name: ArrayRecord({k: Array(np.asarray(a)) for k, a in arrays.items()}), **others})


def _check_arrays(content: RecordDict, model: Model) -> None:
    try:
        (record,) = content.array_records.values()
        arrays = {name: array.numpy() for name, array in record.items()}
        model.difference(arrays)
    except (ValueError, TypeError, EOFError, OSError, MemoryError) as error:
        raise SideInformationMismatch(f"there is no payload of klms, nor the model's arrays: {error}") from error
    if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays.values()):
        raise CorruptMessage("an array is not finite")


def _shape(content: RecordDict) -> tuple[tuple[str, ...], ...]:
    """The names in a reply, and how many numbers each has. Strategies give up the whole round when they differ."""
    metrics = content.metric_records
    sizes = (
        tuple(f"{name}:{len(value) if isinstance(value, list) else 0}" for name, value in sorted(record.items()))
        for record in metrics.values()
    )
    return (*sizes, tuple(metrics), tuple(content.array_records))


def _check_metrics(content: RecordDict, usual: tuple[tuple[str, ...], ...], weighted_by: str | None) -> None:
    if _shape(content) != usual:
        raise SideInformationMismatch("its records or metrics have other names than those of most clients")
    for record in content.metric_records.values():
        weight = record.get(weighted_by) if weighted_by else None
        if weight is not None and not (isinstance(weight, (int, float)) and 0 <= weight < math.inf):
            raise CorruptMessage(f"{weight!r} is no weight")
