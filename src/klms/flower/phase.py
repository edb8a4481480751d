"""One part of a round, training or evaluation: requests replace arrays, and replies are matched to requests.

A node that was never seen gets only a request. A node without the mod then fails, or answers without a record of klms;
it gets the arrays in the same round and in all later ones. A node that turns out to hold another model gets a snapshot.

Flower's strategies assume that all replies have the same records, arrays and metrics, and one weight each. A single
client that differs would spoil the round for all, so it is left out and counted. A strategy with its own
`aggregate_train` gets all replies that have arrays.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from klms.container import Array as NumPyArray
from klms.errors import InvalidArgument, KLMSError, OutOfSync, SideInformationMismatch
from klms.exchange.model import Model
from klms.exchange.robust import Robust
from klms.exchange.server import Base, Server
from klms.flower.answer import Alike, Answer, Asked
from klms.flower.records import MODEL, RECORD, REPLY, REQUEST, Places, arrays_of, equal, matched, places_of
from klms.frame import cause_of, digest_of
from klms.methods.limits import MessageBound
from klms.printable import printable

log = logging.getLogger("flwr")
Decoded = list[tuple[Answer, dict[str, NumPyArray]]]
_LONGEST_REASON = 500  # characters
_NO_ANSWER = (3, 4, 5)  # Flower's error codes: the message or its reply expired, or the node is gone


@dataclass
class Run:
    """Facts about a run so far: which nodes have the mod, and what was sent and received."""

    with_mod: set[int] = field(default_factory=set)
    without_mod: set[int] = field(default_factory=set)
    asked: int = 0
    """Number of messages that asked for training."""
    counted: int = 0
    """Number of answers that were aggregated."""
    entries_up: int = 0
    """Number of parameters of all accepted answers."""
    entries_down: int = 0
    """Number of parameters of all arrays that were sent, compressed or not."""
    first_failure: str = ""
    """Reason why the first bad reply failed or was refused; empty if there was none."""
    _told: set[str] = field(default_factory=set)

    @property
    def because(self) -> str:
        """The first failure, as the end of an error message."""
        return f"; the first failure was at {self.first_failure}" if self.first_failure else ""

    def failed(self, node: int, reason: str) -> None:
        """Keep the reason if it is the first one: the first failure is most often the cause of the others."""
        self.first_failure = self.first_failure or f"node {node}: {printable(reason)[:_LONGEST_REASON]}"

    def tell(self, what: str, text: str, *values: object) -> None:
        """Log a warning, at most once per run."""
        if what not in self._told:
            self._told.add(what)
            log.warning(text, *values)


@dataclass
class Phase:
    """The messages of one part of a round, and their answers."""

    server: Server
    run: Run
    grid: Grid
    timeout: float
    model: ArrayRecord | None
    """The model, which requests replace in every message that contains it; None if nothing is coded."""
    counts: Counter[str] = field(default_factory=Counter)
    asked: list[Asked] = field(default_factory=list)
    _base: tuple[RecordDict, Base] | None = None

    def __post_init__(self) -> None:
        self._before = self.server.downlink_bytes

    @property
    def sent_bytes(self) -> int:
        """Bytes of everything that was sent: requests, and arrays alongside them."""
        return self.server.downlink_bytes - self._before

    def prepare(self, messages: Sequence[Message]) -> None:
        """Put requests into the messages, in place of the arrays that clients can decode."""
        for message in sorted(messages, key=lambda one: one.metadata.dst_node_id):  # strategies shuffle them
            self.asked.append(self._prepared(message, message.content))

    def _prepared(self, message: Message, original: RecordDict, *, again: bool = False) -> Asked:
        node = message.metadata.dst_node_id
        model = ""
        if self.model is not None and node not in self.run.without_mod:
            records = original.array_records.items()
            model = next((name for name, record in records if equal(record, self.model)), "")
        places: Places = {}
        base = None
        try:
            places = places_of(original.array_records, model)
            if not any(array.dtype.startswith("float") for array in _arrays_in(original)):
                raise InvalidArgument("there is no floating-point array")
            base = self._base_of(original, model, places)
            record = ConfigRecord({REQUEST: self.server.request(str(node), base), **({MODEL: model} if model else {})})
            others = {RECORD if name == model else name: item for name, item in original.items()}
            message.content = RecordDict({**others, RECORD: record})
        except InvalidArgument as error:
            if self.server.sealed:
                raise InvalidArgument(f"with client_secrets, no update may pass unsealed: {error}") from error
            self.run.tell("passing", "klms: updates pass uncompressed: %s", printable(error))
            places, base = {}, None
        self.server.downlink_bytes += sum(len(array.data) for array in _arrays_in(message.content))
        if not again:
            self.run.entries_down += sum(math.prod(array.shape) for array in _arrays_in(original))
        return Asked(message, original, model, places, base, again)

    def _base_of(self, content: RecordDict, model: str, places: Places) -> Base:
        """Return the arrays to which an update is added.

        They are kept, since most clients are sent the same records.
        """
        if self._base is not None and _same_records(content, self._base[0]) and self._base[1].coded == bool(model):
            return self._base[1]
        records = {name: arrays_of(record) for name, record in content.array_records.items() if name != model}
        beside = {name: records[record][own] for name, (record, own) in places.items() if record != model}
        base = self.server.base(beside, coded=bool(model))
        self._base = (content, base)
        return base

    def settle(self, replies: Iterable[Message]) -> tuple[list[Answer], list[Message]]:
        """Return the answers, and the replies that report a failure, after asking some nodes once more."""
        answers, failed, again = self._sorted(replies, self.asked)
        if again:
            repeated = [self._again(asked) for asked in again]
            messages = [one.message for one in repeated]
            later = self._sorted(self.grid.send_and_receive(messages, timeout=self.timeout), repeated)
            answers, failed = answers + later[0], failed + later[1]
            self.counts["lost"] += len(later[2])
        return answers, failed

    def _again(self, asked: Asked) -> Asked:
        content = RecordDict(dict(asked.original))
        message = Message(content, dst_node_id=asked.node, message_type=asked.message.metadata.message_type)
        return self._prepared(message, content, again=True)

    def _sorted(
        self, replies: Iterable[Message], asked: Sequence[Asked]
    ) -> tuple[list[Answer], list[Message], list[Asked]]:
        """Return the answers, the failures, and the messages to be sent once more."""
        answers: list[Answer] = []
        failed: list[Message] = []
        again: list[Asked] = []
        pairs = matched([one.message for one in asked], replies)
        for number, reply in pairs:
            if number is None:
                self.refuse(reply, SideInformationMismatch("this node was not asked, or it has answered already"))
                continue
            one = asked[number]
            if self._is_stranger(one, reply):
                self.run.without_mod.add(one.node)
                self.server.forget(str(one.node))
                again.append(one)
            elif reply.has_error():
                self.counts[cause_of_failure(reply.error.code)] += 1
                self.run.failed(one.node, reply.error.reason or "no reason given")
                failed.append(reply)
            else:
                try:
                    answers.append(self._answer(one, reply))
                except OutOfSync:
                    log.warning("klms: node %d held another model, and gets a snapshot", one.node)
                    self.counts["resyncs"] += 1
                    again.append(one)
                except KLMSError as error:
                    self.refuse(reply, error)
        self.counts["missing"] += len(asked) - len({number for number, _ in pairs} - {None})
        return answers, failed, again

    def _is_stranger(self, asked: Asked, reply: Message) -> bool:
        """Return whether a node got only a request, for the first time, and did not understand it."""
        if asked.again or not asked.model or asked.node in self.run.with_mod:
            return False
        if reply.has_error():
            return reply.error.code not in _NO_ANSWER
        return RECORD not in reply.content.config_records

    def _answer(self, asked: Asked, reply: Message) -> Answer:
        """Read an answer; raise a `KLMSError` to refuse it, or `OutOfSync` if the node must be asked again."""
        record = reply.content.config_records.get(RECORD)
        if record is None or not asked.places:
            if asked.places and self.server.sealed and reply.content.array_records:
                raise SideInformationMismatch("with client_secrets, every ClientApp needs the mod")
            return Answer.read(asked, reply, None)
        payload = record.get(REPLY)
        self.run.with_mod.add(asked.node)
        self.run.without_mod.discard(asked.node)
        opened = self.server.open(str(asked.node), payload if isinstance(payload, bytes) else b"")
        return Answer.read(asked, reply, opened)

    def trained(self, answers: Sequence[Answer], key: str | None, robust: Robust | None, alike: Alike) -> list[Message]:
        """Decode the training answers and return those that are accepted, all in memory, as strategies need them.

        `key` is the metric by which the strategy weights clients; None if there is no such metric. An answer is left
        out if it is less `alike` most others than the strategy needs.
        """
        usable = [one for one in answers if one.usable(key)]
        common = Counter(one.signature(alike) for one in usable).most_common(1)
        usual = common[0][0] if common else None
        bound = _bound_among([one for one in usable if one.signature(alike) == usual])

        def weight(one: Answer) -> float:
            if not one.usable(key):
                raise SideInformationMismatch("it has no arrays, or no metric to weight them by")
            if one.signature(alike) != usual:
                raise SideInformationMismatch("its records, arrays or metrics differ from those of most clients")
            if one.reply is not None:
                bound.check(one.reply.message)
            return one.weight(key)

        decoded = self._decoded(answers, weight)
        if robust is not None and decoded:
            decoded = self._averaged(decoded, robust)
        self.counts["ok"] += len(decoded)
        self.counts["uncompressed"] += sum(not one.coded for one, _ in decoded)
        return self._put(decoded)

    def evaluated(self, answers: Sequence[Answer]) -> list[Message]:
        """Decode the evaluation answers, and return them; they may have arrays, but need not."""
        return self._put(self._decoded(answers, lambda one: 0.0))

    def _decoded(self, answers: Sequence[Answer], weight: Callable[[Answer], float]) -> Decoded:
        """Return the answers with their arrays; those for which `weight` raises an error are refused."""
        decoded: Decoded = []
        for one in answers:
            try:
                decoded.append((one, one.decode(self.server, weight(one))))
            except KLMSError as error:
                self.refuse(one.message, error)
        return decoded

    def _averaged(self, decoded: Decoded, robust: Robust) -> Decoded:
        """Return the answers, each with the robust average instead of its own arrays, so that weights do not matter."""
        bases = {base.digests: base.arrays for one, _ in decoded if (base := one.asked.base)}
        digests = {which: digest_of(0, arrays) for which, arrays in bases.items()}
        own = [digests[base.digests] if (base := one.asked.base) else b"" for one, _ in decoded]
        (usual, _), *others = Counter(own).most_common()
        if others or not usual:
            self.run.tell("robust", "klms: robust compares only those clients to which klms has sent the same arrays")
        if not usual:
            return decoded
        arrays = next(arrays for which, arrays in bases.items() if digests[which] == usual)
        model = Model(arrays, sent_unchanged=self.server.uplink.exact)
        kept = [pair for pair, digest in zip(decoded, own, strict=True) if digest == usual]
        average, clipped = robust.average_arrays(model, [arrays for _, arrays in kept])
        self.counts["clipped"] += clipped
        return [(one, average) for one, _ in kept]

    def _put(self, decoded: Decoded) -> list[Message]:
        for one, arrays in decoded:
            self.run.entries_up += one.entries
            one.put(arrays)
        return [one.message for one, _ in decoded]

    def refuse(self, reply: Message, error: KLMSError) -> None:
        """Count a reply that is left out, under the cause of its refusal."""
        self.counts[cause_of(error)] += 1
        self.run.failed(reply.metadata.src_node_id, str(error))
        log.warning("klms: the reply of node %d does not count: %s", reply.metadata.src_node_id, printable(error))


def _arrays_in(content: RecordDict) -> list[Array]:
    return [array for record in content.array_records.values() for array in record.values()]


def _same_records(one: RecordDict, other: RecordDict) -> bool:
    mine, theirs = one.array_records, other.array_records
    return mine.keys() == theirs.keys() and all(record is theirs[name] for name, record in mine.items())


def cause_of_failure(code: int) -> str:
    """Return the cause of an error reply: the client's app failed, or Flower replied because no answer arrived."""
    return "missing" if code in _NO_ANSWER else "error"


def _bound_among(answers: Sequence[Answer]) -> MessageBound:
    """Return the bound on messages that answer the same request; all messages of a round share one compressor."""
    coded = [one.reply for one in answers if one.reply is not None and one.reply.expected.coder is not None]
    factor = coded[0].expected.coder[0].message_factor if coded and coded[0].expected.coder else 0.0
    return MessageBound(factor, [reply.message for reply in coded])
