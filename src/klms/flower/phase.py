"""One part of a round, training or evaluation: requests take the place of arrays, and replies are matched to them.

A node that was never seen gets a request alone. If it lacks the mod, it fails or answers without a word of klms: then
it gets the arrays in the same round, and from then on. A node that turned out to hold another model gets a snapshot.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from klms.errors import InvalidArgument, KLMSError, OutOfSync, SideInformationMismatch
from klms.exchange.reply import Reply
from klms.exchange.server import Base, Server
from klms.flower.records import MODEL, RECORD, REPLY, REQUEST, Places, arrays_of, equal, places_of
from klms.frame import cause_of
from klms.printable import printable

log = logging.getLogger("flwr")
_NO_ANSWER = (3, 4, 5)  # Flower's error codes: the message or its reply expired, or the node is gone
COUNTED = (
    "ok",
    "error",
    "missing",
    "lost",
    "corrupt",
    "stale",
    "mismatch",
    "outsized",
    "uncompressed",
    "undone",
    "clipped",
)
"""What a round of `Compressed` counts, where it is not zero."""


@dataclass(frozen=True)
class Asked:
    """A message that went out."""

    message: Message
    original: RecordDict
    """Its content before requests took the place of arrays."""
    model: str
    """Name of the record that the request stands for; empty if the arrays went out beside it."""
    places: Places
    """Where the arrays are; empty if klms lets the message pass."""
    again: bool = False
    """Whether it was sent because an earlier one was not understood."""

    @property
    def node(self) -> int:
        return self.message.metadata.dst_node_id


@dataclass(frozen=True)
class Answer:
    """A reply with the message that it answers."""

    asked: Asked
    message: Message
    reply: Reply | None
    """What klms sent; None for a node without the mod."""


@dataclass
class Nodes:
    """What is known of the nodes of a run."""

    with_mod: set[int] = field(default_factory=set)
    without_mod: set[int] = field(default_factory=set)
    passed: bool = False
    """Whether the log says already that messages pass uncompressed."""


@dataclass
class Phase:
    """What was sent in this part of the round, and to whom."""

    server: Server
    nodes: Nodes
    grid: Grid
    timeout: float
    model: ArrayRecord
    """What clients hold; messages that hold the same arrays are coded."""
    coded: bool
    """Whether the model is coded at all."""
    counts: Counter[str] = field(default_factory=Counter)
    array_bytes: int = 0
    """Bytes of the arrays that went out beside requests."""
    resyncs: int = 0
    entries: int = 0
    """Parameters of all arrays that the messages stand for."""
    _asked: list[Asked] = field(default_factory=list)
    _base: tuple[RecordDict, Base] | None = None

    def __post_init__(self) -> None:
        self._before = self.server.downlink_bytes

    @property
    def messages(self) -> int:
        return len(self._asked)

    @property
    def sent_bytes(self) -> int:
        """Bytes of everything that went out: requests, and arrays beside them."""
        return self.array_bytes + self.server.downlink_bytes - self._before

    def prepare(self, messages: Sequence[Message]) -> None:
        """Put requests into the messages, in the place of the arrays that clients can decode."""
        for message in sorted(messages, key=lambda one: one.metadata.dst_node_id):  # strategies shuffle them
            self._asked.append(self._prepared(message, message.content))

    def _prepared(self, message: Message, original: RecordDict, *, again: bool = False) -> Asked:
        node = message.metadata.dst_node_id
        model = self._place(original) if node not in self.nodes.without_mod else ""
        try:
            places = self._places(original, model)
            request = self.server.request(str(node), self._base_of(original, model, places)) if places else b""
        except InvalidArgument as error:
            self._let_pass(error)
            places = {}
        if places:
            record = ConfigRecord({REQUEST: request, **({MODEL: model} if model else {})})
            content = {
                RECORD if name == model else name: record if name == model else r for name, r in original.items()
            }
            message.content = RecordDict(content if model else {**content, RECORD: record})
        for arrays in message.content.array_records.values():
            self.array_bytes += sum(len(array.data) for array in arrays.values())
        for arrays in () if again else original.array_records.values():
            self.entries += sum(math.prod(array.shape) for array in arrays.values())
        return Asked(message, original, model, places, again)

    def _place(self, content: RecordDict) -> str:
        """Return the name under which a message holds the model that clients hold; empty if it does not."""
        if not self.coded:
            return ""
        return next((name for name, record in content.array_records.items() if equal(record, self.model)), "")

    def _places(self, content: RecordDict, model: str) -> Places:
        """Return where the arrays of a message are; nothing, with one line in the log, if klms has to let them pass."""
        records = content.array_records
        if not any(array.dtype.startswith("float") for record in records.values() for array in record.values()):
            raise InvalidArgument("there is no floating-point array")
        return places_of(records, model)

    def _base_of(self, content: RecordDict, model: str, places: Places) -> Base:
        """Return what an update is the difference to; strategies send the same records to most clients."""
        if self._base is not None and _same_records(content, self._base[0]) and self._base[1].coded == bool(model):
            return self._base[1]
        records = {name: arrays_of(record) for name, record in content.array_records.items() if name != model}
        beside = {name: records[record][own] for name, (record, own) in places.items() if record != model}
        base = self.server.base(beside, coded=bool(model))
        self._base = (content, base)
        return base

    def _let_pass(self, error: InvalidArgument) -> None:
        if self.server.sealed:
            raise InvalidArgument(f"with client_secrets, no update may pass unsealed: {error}") from error
        if not self.nodes.passed:
            self.nodes.passed = True
            log.warning("klms: updates pass uncompressed: %s", printable(error))

    def settle(self, replies: Iterable[Message]) -> tuple[list[Answer], list[Message]]:
        """Return the answers, and the replies that report a failure, after asking some nodes once more."""
        answers, failed, again = self._sorted(list(replies), self._asked)
        if again:
            repeated = [self._again(asked) for asked in again]
            later = self._sorted(
                list(self.grid.send_and_receive([one.message for one in repeated], timeout=self.timeout)), repeated
            )
            answers, failed = answers + later[0], failed + later[1]
        return answers, failed

    def _again(self, asked: Asked) -> Asked:
        content = RecordDict(dict(asked.original))
        message = Message(content, dst_node_id=asked.node, message_type=asked.message.metadata.message_type)
        return self._prepared(message, content, again=True)

    def _sorted(
        self, replies: Sequence[Message], asked: Sequence[Asked]
    ) -> tuple[list[Answer], list[Message], list[Asked]]:
        """Return the answers, the failures, and the messages to be sent once more."""
        by_id = {sent.message.metadata.message_id: sent for sent in asked if sent.message.metadata.message_id}
        waiting: dict[int, list[Asked]] = {}
        for sent in asked:
            waiting.setdefault(sent.node, []).append(sent)
        answers: list[Answer] = []
        failed: list[Message] = []
        again: list[Asked] = []
        for reply in replies:
            one: Asked | None = by_id.get(reply.metadata.reply_to_message_id)
            left = waiting.get(reply.metadata.src_node_id if one is None else one.node, [])
            if one is None or one not in left:
                one = left[0] if left else None
            if one is None:
                self._refuse(reply, SideInformationMismatch("this node was not asked, or it has answered already"))
                continue
            left.remove(one)
            if self._is_stranger(one, reply):
                self.nodes.without_mod.add(one.node)
                self.server.forget(str(one.node))
                again.append(one)
            elif reply.has_error():
                self.counts[cause_of_failure(reply.error.code)] += 1
                failed.append(reply)
            else:
                answers += self._answer(one, reply, again)
        self.counts["missing"] += sum(map(len, waiting.values()))
        return answers, failed, again

    def _is_stranger(self, asked: Asked, reply: Message) -> bool:
        """Return whether a node got a request alone for the first time, and does not know what that is."""
        if asked.again or not asked.model or asked.node in self.nodes.with_mod:
            return False
        if reply.has_error():
            return reply.error.code not in _NO_ANSWER
        return RECORD not in reply.content.config_records

    def _answer(self, asked: Asked, reply: Message, again: list[Asked]) -> Iterator[Answer]:
        record = reply.content.config_records.get(RECORD)
        if record is None or not asked.places:
            if asked.places and self.server.sealed and reply.content.array_records:
                self._refuse(reply, SideInformationMismatch("with client_secrets, every ClientApp needs the mod"))
                return
            yield Answer(asked, reply, None)
            return
        payload = record.get(REPLY)
        try:
            opened = self.server.open(str(asked.node), payload if isinstance(payload, bytes) else b"")
        except OutOfSync:
            log.warning("klms: node %d held another model, and gets a snapshot", asked.node)
            self.nodes.with_mod.add(asked.node)
            self.resyncs += 1
            again.append(asked)
        except KLMSError as error:
            self._refuse(reply, error)
        else:
            self.nodes.with_mod.add(asked.node)
            self.nodes.without_mod.discard(asked.node)
            yield Answer(asked, reply, opened)

    def _refuse(self, reply: Message, error: KLMSError) -> None:
        self.counts[cause_of(error)] += 1
        log.warning("klms: the reply of node %d does not count: %s", reply.metadata.src_node_id, printable(error))


def _same_records(one: RecordDict, other: RecordDict) -> bool:
    mine, theirs = one.array_records, other.array_records
    return mine.keys() == theirs.keys() and all(record is theirs[name] for name, record in mine.items())


def cause_of_failure(code: int) -> str:
    """Return the cause for an error reply, made by the client's app or by Flower when no answer came."""
    return "missing" if code in _NO_ANSWER else "error"


def refused(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts that are not zero, as metrics of a round."""
    return {f"klms-{word}": counts[word] for word in COUNTED if counts.get(word)}
