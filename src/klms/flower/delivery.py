"""How models reach the nodes of `Compressed`: coded where the mod is, as arrays where it is not, again where it failed.

A node that was never seen is asked whether it has the mod, by a message of a few bytes that the mod itself answers.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from klms.flower.downlink import DOWN, HELLO, OUT_OF_SYNC, ModelDownlink
from klms.flower.request import RECORD, VERSION

log = logging.getLogger("flwr")
_HELLO_TIMEOUT = 60.0  # seconds: a node answers at once


@dataclass
class Delivery:
    """What was sent in this part of the round, and to whom."""

    downlink: ModelDownlink | None = None
    """None if the model goes out as arrays."""
    timeout: float = 3600.0
    without_mod: set[int] = field(default_factory=set)
    """Nodes that have answered as only nodes without the mod do."""
    sent_bytes: int = 0
    messages: int = 0
    resyncs: int = 0
    _grid: Grid | None = None
    _coded: defaultdict[int, list[Message]] = field(default_factory=lambda: defaultdict(list))

    def prepare(self, messages: Sequence[Message], model: ArrayRecord, grid: Grid) -> None:
        """Put the broadcast of each node in the place of the arrays, in messages that hold this model."""
        self._grid = grid
        self._coded.clear()
        self.sent_bytes, self.messages, self.resyncs = 0, len(messages), 0
        coded = [message for message in messages if self.downlink and _place_of(model, message.content)]
        self._greet({message.metadata.dst_node_id: message.metadata.message_type for message in coded})
        for message in coded:
            node = message.metadata.dst_node_id
            if self.downlink is not None and node in self.downlink.held:
                self._coded[node].append(message)
                message.content = self._with_broadcast(message.content, _place_of(model, message.content), node)
        for message in messages:
            arrays = (array for record in message.content.array_records.values() for array in record.values())
            self.sent_bytes += sum(len(array.data) for array in arrays)

    def settle(self, replies: Iterable[Message]) -> list[Message]:
        """Return the replies; nodes that turned out to hold another model are sent a snapshot, and answer once more."""
        replies, again = list(replies), []
        for reply in replies:
            node = reply.metadata.src_node_id
            if self.downlink is None or reply.has_error() or not reply.has_content():
                continue
            if _is_out_of_sync(reply):
                log.warning("klms: node %d held another model, and gets a snapshot", node)
                self.downlink.held.pop(node, None)
                again += self._coded.pop(node, [])
                self.resyncs += 1
            elif node in self._coded:
                self.downlink.reached(node)
            elif RECORD not in reply.content and reply.metadata.message_type.partition(".")[0] == MessageType.TRAIN:
                self.without_mod.add(node)
        if not again or self._grid is None or self.downlink is None:
            return replies
        repeated = []
        for message in again:
            node = message.metadata.dst_node_id
            content = self._with_broadcast(message.content, DOWN, node)
            repeated.append(Message(content, dst_node_id=node, message_type=message.metadata.message_type))
        answers = list(self._grid.send_and_receive(repeated, timeout=self.timeout))
        for answer in answers:
            if not _is_out_of_sync(answer) and not answer.has_error():
                self.downlink.reached(answer.metadata.src_node_id)
        return [reply for reply in replies if not _is_out_of_sync(reply)] + answers

    def _with_broadcast(self, content: RecordDict, place: str, node: int) -> RecordDict:
        """Return the content with the node's broadcast in the place of the arrays, or of an earlier broadcast."""
        assert self.downlink is not None
        broadcast, steps = self.downlink.message(node), self.downlink.steps
        name = content.config_records[DOWN]["arrays"] if place == DOWN else place
        down = ConfigRecord(
            {
                "broadcast": broadcast,
                "arrays": name,
                "chain": steps.seed,
                "agreed": steps.agreed(),
            }
        )
        self.sent_bytes += len(broadcast)
        return RecordDict({DOWN if key == place else key: down if key == place else r for key, r in content.items()})

    def _greet(self, types: Mapping[int, str]) -> None:
        """Ask nodes that were never seen whether they have the mod.

        Mods see only messages of types that their app has a function for: so these are of the type that will follow.
        """
        if self.downlink is None or self._grid is None:
            return
        strangers = sorted(types.keys() - self.downlink.held.keys() - self.without_mod)
        hello = RecordDict({HELLO: ConfigRecord({"version": VERSION})})
        questions = [Message(hello, dst_node_id=node, message_type=types[node]) for node in strangers]
        if not questions:
            return
        for reply in self._grid.send_and_receive(questions, timeout=min(self.timeout, _HELLO_TIMEOUT)):
            if not reply.has_error() and HELLO in reply.content:
                self.downlink.held[reply.metadata.src_node_id] = 0


def _is_out_of_sync(reply: Message) -> bool:
    return not reply.has_error() and reply.has_content() and OUT_OF_SYNC in reply.content


def _place_of(model: ArrayRecord, content: RecordDict) -> str:
    """Return the name under which a message holds this very model, maybe beside other records; empty if it does not."""
    return next((name for name, record in content.array_records.items() if record is model), "")
