"""Our methods' ServerApp: the rounds of the local engine, with clients that Flower reaches.

State, ledger and checkpoint are those of `klms run`, in a run folder. A server that is started again finds it and goes
on with the next absolute round, so no key is used twice.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from klms.codec import CorruptMessage, KLMSError
from klms.engine.federation import Federation
from klms.engine.rounds import Memory, RoundResult, rounds
from klms.experiments import run
from klms.flower.client import CLIENT, METRICS, ROUND, SECONDS, STATE
from klms.flower.frame import CAUSES, METHOD, OVERHEAD, Ticket, cause, failure, fingerprint
from klms.flower.order import PAYLOAD, RECORD
from klms.flower.settings import ServerSettings, run_config, server_settings
from klms.methods.base import State, Upload
from klms.methods.config import RunConfig

log = logging.getLogger("flwr")
KL_BY_LAYER = "kl_by_layer"
_LONGEST = 1e7  # seconds
_MOST_BITS = 1e6
_ANSWERS_WITHIN = 60.0  # seconds: who a node is, it knows at once


def server_app(config: RunConfig | None = None, settings: ServerSettings | None = None) -> ServerApp:
    """The app. What is not given comes from the config that `flwr run` hands out."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """All rounds that are left."""
        chosen = config or run_config(context.run_config)
        own = settings or server_settings(context.run_config)
        clients = FlowerClients(grid, own)

        def engine(federation: Federation, config: RunConfig, state: State) -> Iterator[RoundResult]:
            if state.round:
                log.info("klms: going on after round %d", state.round)
            clients.round, clients.layers = state.round, len(federation.method.layout.names)
            return rounds(federation, config, state, clients)

        summary = run.serve(chosen, own.folder, engine, progress=_show)
        log.info("klms: %s, %d rounds, %s", summary.method, summary.rounds, summary.metrics)

    return app


def _show(config: RunConfig, record: Mapping[str, object]) -> None:
    shown = {
        name: record[name] for name in ("accuracy", "bits_per_parameter", "payload_bytes", "replies") if name in record
    }
    log.info("klms: round %s of %d: %s", record["round"], config.rounds, shown)


@dataclass
class FlowerClients:
    """The clients of a run, on Flower's nodes. Whatever they send costs at most their own turn."""

    grid: Grid
    settings: ServerSettings
    layers: int = 0
    """Of the model."""
    round: int = 0
    """Rounds done."""
    nodes: dict[int, int] = field(default_factory=dict)
    """Client to node; those that are gone, too."""
    met: set[int] = field(default_factory=set)
    """Nodes that have said which client they are."""
    waited: set[int] = field(default_factory=set)
    """Clients that had their time to join."""
    counts: Counter[str] = field(default_factory=Counter)
    payload_bytes: int = 0
    downlink_bytes: int = 0

    def run(self, broadcast: bytes, wanted: Sequence[tuple[int, Memory]]) -> list[Upload]:
        """Ask, wait, and sort out what is no reply to this."""
        self.round += 1
        self.counts = Counter(dict.fromkeys(("ok", *CAUSES), 0))
        self.payload_bytes = 0
        clients = [client for client, _ in wanted]
        online = self._meet(clients)
        record = RecordDict(
            {
                RECORD: ArrayRecord({STATE: Array(np.frombuffer(broadcast, dtype=np.uint8))}),
                ROUND: ConfigRecord({"round": self.round}),
            }
        )
        asked = {self.nodes[client]: client for client in clients if self.nodes.get(client) in online}
        messages = [Message(record, dst_node_id=node, message_type=MessageType.TRAIN) for node in asked]
        self.downlink_bytes = len(broadcast) * len(messages)
        replies = list(self.grid.send_and_receive(messages, timeout=self.settings.round_timeout))
        self.counts["missing"] += len(clients) - len(replies)
        agreed = fingerprint([broadcast])
        uploads = {}
        for reply in replies:
            client = asked.get(reply.metadata.src_node_id, -1)
            if reply.has_error():
                self.counts[failure(reply.error.code)] += 1
                log.warning("klms: client %d failed: %s", client, reply.error.reason)
                continue
            try:
                uploads[client] = self._open(reply, Ticket(METHOD, self.round, client, agreed))
            except KLMSError as error:
                self._count(client, error)
        self.counts["ok"] = len(uploads)
        return [uploads[client] for client in clients if client in uploads]

    def refuse(self, upload: Upload, why: KLMSError) -> None:
        """Count it as what it is, and its bytes no longer."""
        self.counts["ok"] -= 1
        self.payload_bytes -= len(upload.message) + OVERHEAD
        self._count(upload.client, why)

    def enough(self, received: int) -> bool:
        """As the settings say."""
        return received >= self.settings.min_replies

    def facts(self) -> dict[str, object]:
        """Replies by what became of them, and bytes with their frames."""
        return {
            "replies": dict(self.counts),
            "payload_bytes": self.payload_bytes,
            "downlink_bytes": self.downlink_bytes,
        }

    def _count(self, client: int, why: KLMSError) -> None:
        self.counts[cause(why)] += 1
        log.warning("klms: what client %d sent does not count: %s", client, why)

    def _open(self, reply: Message, ticket: Ticket) -> Upload:
        record = reply.content.config_records.get(RECORD)
        payload = None if record is None else record.get(PAYLOAD)
        if not isinstance(payload, bytes):
            raise CorruptMessage("there is no payload of klms in it")
        message = ticket.open(payload)
        self.payload_bytes += len(payload)
        return Upload(ticket.client, message, _seconds(reply), facts=self._told(reply))

    def _told(self, reply: Message) -> dict[str, list[float]]:
        """The fact that a client may tell the ledger; what cannot be one is not taken."""
        values = _metrics(reply).get(KL_BY_LAYER)
        fits = isinstance(values, list) and len(values) == self.layers and all(0 <= v < _MOST_BITS for v in values)
        return {KL_BY_LAYER: [float(value) for value in values]} if fits and isinstance(values, list) else {}

    def _meet(self, wanted: Sequence[int]) -> set[int]:
        """The nodes that are online, once clients that were never seen had time to join: once, not every round."""
        awaited = set(wanted) - self.waited
        self.waited |= awaited
        deadline = time.monotonic() + self.settings.join_timeout
        asked: set[int] = set()  # a node that does not answer now is asked again in the next round
        while True:
            online = set(self.grid.get_node_ids())
            absent = [client for client in wanted if self.nodes.get(client) not in online]
            if absent and (new := online - self.met - asked):
                asked |= new
                self._ask_who(sorted(new), online)
            elif all(client in self.nodes for client in awaited) or time.monotonic() > deadline:
                return online
            else:
                time.sleep(0.5)

    def _ask_who(self, nodes: list[int], online: set[int]) -> None:
        questions = [
            Message(RecordDict({RECORD: ConfigRecord({"round": self.round})}), node, MessageType.QUERY)
            for node in nodes
        ]
        for reply in self.grid.send_and_receive(questions, timeout=_ANSWERS_WITHIN):
            node = reply.metadata.src_node_id
            if reply.has_error():
                log.warning("klms: node %d does not say which client it is: %s", node, reply.error.reason)
                continue
            client = _metrics(reply).get(CLIENT)
            if not isinstance(client, int):
                log.warning("klms: node %d does not say which client it is", node)
            elif self.nodes.get(client, node) in online - {node}:
                log.warning(
                    "klms: node %d says that it is client %d, which node %d is", node, client, self.nodes[client]
                )
            else:
                self.nodes[client] = node
                self.met.add(node)


def _metrics(reply: Message) -> Mapping[str, object]:
    return reply.content.metric_records.get(METRICS) or {}


def _seconds(reply: Message) -> dict[str, float]:
    """What the client says that it took; it is for the ledger alone, and no number of it may spoil that."""
    told = {phase: _metrics(reply).get(SECONDS + phase) for phase in ("train", "encode")}
    return {
        phase: float(value) if isinstance(value, (int, float)) and 0 <= value < _LONGEST else 0.0
        for phase, value in told.items()
    }
