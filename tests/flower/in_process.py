"""Flower's grid without Flower's network: messages go to ClientApps in this process."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from klms.frame import Frame, Kind

try:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # messages are made by apps only
except ImportError:  # releases before 1.40 do without
    pass

REFUSED = ("error", "missing", "lost", "corrupt", "stale", "mismatch", "outsized")
COUNTED = ("ok", *REFUSED, "uncompressed", "undone", "clipped")
"""What a round of `Compressed` counts."""

Reply = Callable[[int, Message], Message | Error | None]


class InProcessGrid(Grid):
    """Nodes `1..n`, each with a context that lasts.

    `tamper` sees every reply, and may change it, replace it by an error or lose it (None).
    """

    def __init__(
        self, app: ClientApp, nodes: int, config: Mapping[str, object] | None = None, tamper: Reply | None = None
    ) -> None:
        self.app = app
        self.tamper = tamper
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self.contexts = {
            node: Context(
                1, node, {"partition-id": node - 1, "num-partitions": nodes}, RecordDict(), {**(config or {})}
            )
            for node in range(1, nodes + 1)
        }
        self.offline: set[int] = set()

    def set_run(self, run):
        pass

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id=dst_node_id, message_type=message_type)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.offline]

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            self.sent.append(message)
            node = message.metadata.dst_node_id
            arrived = Message(
                RecordDict(dict(message.content)), dst_node_id=node, message_type=message.metadata.message_type
            )
            try:
                reply = self.app(arrived, self.contexts[node])
            except Exception as error:
                reply = Message(Error(1, str(error)), reply_to=arrived)
            if self.tamper is not None:
                found = self.tamper(node, reply)
                reply = Message(found, reply_to=arrived) if isinstance(found, Error) else found
            if reply is not None:
                replies.append(reply)
                self.received.append(reply)
        return replies


def serve(app: ServerApp, grid: InProcessGrid, config: Mapping[str, object] | None = None) -> None:
    """Run a ServerApp to its end."""
    app(grid, Context(0, 0, {}, RecordDict(), dict(config or {})))


def counts_of(metrics: Mapping[str, object]) -> dict[str, int]:
    """What a round counted, without the words "klms-"; only what is not zero is there at all."""
    return {word: int(metrics[f"klms-{word}"]) for word in COUNTED if f"klms-{word}" in metrics}


def with_head(reply: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A reply of the exchange whose head is another one, in a frame that is sound."""
    frame = Frame.from_bytes(reply, Kind.REPLY)
    length = int.from_bytes(frame.body[5:9], "little")
    head, message = frame.body[9 : 9 + length], frame.body[9 + length :]
    changed = change(head)
    body = frame.body[:5] + len(changed).to_bytes(4, "little") + changed + message
    return replace(frame, body=body).to_bytes()
