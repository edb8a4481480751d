"""ServerApp for the methods of klms: the rounds of the local engine, with clients on Flower's nodes.

State, ledger and checkpoint are those of `klms run`, in a run folder. A server that is started again resumes the run in
that folder with the next round, so that no key is used twice. Every run draws its own seed, so that no two runs share
keys; only a run that is `seeded`, to repeat a simulation, uses the seed of its config.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from klms.engine.downlink import Broadcasts
from klms.engine.federation import OWN, Federation
from klms.engine.ledger import LedgerRecord, Shown, measured_by_clients
from klms.engine.rounds import Results, Wanted, rounds
from klms.errors import CorruptMessage, InvalidArgument, KLMSError, SideInformationMismatch
from klms.exchange.sealing import ServerKey
from klms.flower.client import CLIENT, METRICS, OUT_OF_SYNC, SECONDS, SERVER, federation_of
from klms.flower.phase import cause_of_failure
from klms.flower.records import RECORD, REPLY, REQUEST, matched
from klms.flower.settings import ServerSettings, run_config, server_settings
from klms.frame import CAUSES, Frame, Kind, cause_of
from klms.methods.base import Upload
from klms.methods.state import State
from klms.methods.table import RunConfig
from klms.numerics.parallel import cores
from klms.printable import printable
from klms.runs.execution import serve
from klms.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger("flwr")
_MAX_SECONDS = 1e7
_TELL_EVERY = 5.0  # seconds between log lines about clients that the server waits for
_QUERY_TIMEOUT = 60.0  # seconds: a node knows its client number at once


def server_app(
    config: RunConfig | None = None,
    settings: ServerSettings | None = None,
    *,
    model: "Callable[[], nn.Module] | None" = None,
    test: Callable[[], Any] | None = None,
    loss: Callable[..., Any] | None = None,
) -> ServerApp:
    """Return the ServerApp of a method; settings that are not given come from the config that `flwr run` passes.

    `model` returns a network, and `test` returns the examples to evaluate it on, in any form that `klms.federate`
    takes; without them, the config names the model and the data. Give the clients the same `model` and `loss`.
    """
    if (model is None) != (test is None):
        raise InvalidArgument("a server needs both model= and test=, or neither")
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        chosen = config or run_config(context.run_config)
        own = settings or server_settings(context.run_config)
        if model is not None:
            chosen = chosen.model_copy(update={"model": OWN, "data": OWN})
        folder = Path(own.run_folder).expanduser()
        chosen = with_randomness(chosen, RunFolder(folder))
        if own.client_secrets and chosen.downlink == "auto":
            raise InvalidArgument("client-secrets needs downlink snapshot or coded: auto shows messages to all clients")
        federation = federation_of(chosen, model, loss, test and test(), threads=cores())

        def engine(federation: Federation, config: RunConfig, state: State) -> Results:
            if state.round:
                log.info("klms: resuming after round %d", state.round)
            clients = FlowerClients(grid, own, len(federation.method.layout.names), state.round)
            return rounds(federation, config, state, clients)

        summary = serve(federation, chosen, folder, engine, progress=_show)
        log.info("klms: %s, %d rounds, %s", summary.method, summary.rounds, summary.metrics)

    return app


def with_randomness(config: RunConfig, folder: RunFolder) -> RunConfig:
    """Return the settings with the seed of a new run, or with the randomness that the run in the folder began with."""
    if config.private_randomness == "seeded":
        log.warning("klms: private randomness is seeded: whoever knows the seed can reproduce every client's message")
        return config
    if not folder.exists():
        drawn = 1 + secrets.randbelow(2**63 - 1)
        log.info("klms: private randomness comes from the operating system, and the run's seed is drawn at random")
        return config.model_copy(update={"private_randomness": "system", "seed": drawn})
    begun = folder.config()
    kept = begun.private_randomness if config.private_randomness == "auto" else config.private_randomness
    return config.model_copy(update={"private_randomness": kept, "seed": begun.seed})


def _show(config: RunConfig, record: LedgerRecord) -> None:
    log.info("klms: round %d of %d: %s", record.round, config.rounds, record.shown(Shown.IN_LOG))


@dataclass
class FlowerClients:
    """The clients of a run, on Flower's nodes. Whatever a client sends, at most its own reply is lost."""

    grid: Grid
    settings: ServerSettings
    layers: int
    round: int
    nodes: dict[int, int] = field(default_factory=dict)
    """Node of each client, including nodes that are gone."""
    waited_for: set[int] = field(default_factory=set)
    """Clients for which the server has already waited."""
    causes: Counter[str] = field(default_factory=Counter)
    """Number of missing and refused replies in this round, by cause."""
    payload_bytes: dict[int, int] = field(default_factory=dict)
    """Number of bytes of every accepted payload in this round, by client."""
    downlink_bytes: int = 0
    resyncs: int = 0
    """Number of clients of this round that held another state than the server assumed, and got a snapshot."""
    key: ServerKey = field(default_factory=ServerKey)
    """Opens the sealed replies of clients with `client_secrets`."""

    def run(self, broadcasts: Broadcasts, wanted: Wanted) -> Iterator[Upload]:
        """Ask the clients, wait for them, and yield their uploads one by one, in the order of their numbers."""
        self.round += 1
        self.causes = Counter(dict.fromkeys(CAUSES, 0))
        self.payload_bytes = {}
        self.downlink_bytes = 0
        clients = [client for client, _ in wanted]
        online = self._online(clients)
        asked = {self.nodes[client]: client for client in clients if self.nodes.get(client) in online}
        seed = broadcasts.downlink.method.seed
        replies = self._ask(seed, {client: (node, broadcasts.message(client)) for node, client in asked.items()})
        lost = [client for client, reply in replies.items() if not reply.has_error() and OUT_OF_SYNC in reply.content]
        self.resyncs = len(lost)
        for client in lost:
            log.warning("klms: client %d held another state, and gets a snapshot", client)
            del replies[client]  # a client that does not answer again is missing
        replies |= self._ask(seed, {client: (self.nodes[client], broadcasts.snapshot()) for client in lost})
        self.causes["missing"] += len(clients) - len(replies)
        for client in sorted(replies):
            reply = replies.pop(client)
            if reply.has_error():
                self.causes[cause_of_failure(reply.error.code)] += 1
                log.warning("klms: client %d failed: %s", client, printable(reply.error.reason))
                continue
            try:
                upload = self._open(reply, Frame(Kind.METHOD, self.round, client, broadcasts.sender.digest))
            except KLMSError as error:
                self.refuse(client, error)
                continue
            yield upload

    def _ask(self, seed: int, messages: Mapping[int, tuple[int, bytes]]) -> dict[int, Message]:
        """Send each client its broadcast, and return the replies by client."""
        if not messages:
            return {}
        sent = []
        for node, broadcast in messages.values():
            asked = ConfigRecord({REQUEST: broadcast, "round": self.round, "seed": seed})
            if self.settings.client_secrets:
                asked[SERVER] = self.key.public
            sent.append(Message(RecordDict({RECORD: asked}), dst_node_id=node, message_type=MessageType.TRAIN))
            self.downlink_bytes += len(broadcast)
        replies: dict[int, Message] = {}
        clients = list(messages)
        for number, reply in matched(sent, self.grid.send_and_receive(sent, timeout=self.settings.round_timeout)):
            if number is None:
                error = SideInformationMismatch("this node was not asked, or it has answered already")
                self._count(f"node {reply.metadata.src_node_id}", error)
            else:
                replies[clients[number]] = reply
        return replies

    def refuse(self, client: int, error: KLMSError) -> None:
        """Record a refused reply under the cause of its refusal, and leave its bytes out of the totals."""
        self.payload_bytes.pop(client, None)
        self._count(f"client {client}", error)

    def _count(self, whose: str, error: KLMSError) -> None:
        self.causes[cause_of(error)] += 1
        log.warning("klms: a reply of %s does not count: %s", whose, printable(error))

    def enough(self, count: int) -> bool:
        return count >= self.settings.min_replies

    def report(self) -> dict[str, object]:
        return {
            "replies": {"ok": len(self.payload_bytes), **self.causes},
            "payload_bytes": sum(self.payload_bytes.values()),
            "downlink_bytes": self.downlink_bytes,
            "resyncs": self.resyncs,
        }

    def _open(self, reply: Message, expected: Frame) -> Upload:
        record = reply.content.config_records.get(RECORD)
        payload = None if record is None else record.get(REPLY)
        if not isinstance(payload, bytes):
            raise CorruptMessage("it holds no payload of klms")
        client = expected.second
        frame = Frame.from_bytes(self.key.open(payload) if self.settings.client_secrets else payload, Kind.METHOD)
        frame.check_belongs_to(expected)
        self.payload_bytes[client] = len(payload)
        measured = measured_by_clients(_metrics(reply), self.layers)
        reported = {phase: _metrics(reply).get(SECONDS + phase) for phase in ("train", "encode")}
        seconds = {p: float(v) for p, v in reported.items() if isinstance(v, (int, float)) and 0 <= v < _MAX_SECONDS}
        return Upload(client, frame.body, {"train": 0.0, "encode": 0.0, **seconds}, measurements=measured)

    def _online(self, wanted: Sequence[int]) -> set[int]:
        """Return the nodes that are online; clients that were never seen get time to join, once."""
        awaited = set(wanted) - self.waited_for
        self.waited_for |= awaited
        deadline = time.monotonic() + self.settings.join_timeout
        asked: set[int] = set()  # a node that does not answer now is asked again in the next round
        told = time.monotonic()
        while True:
            online = set(self.grid.get_node_ids())
            absent = [client for client in wanted if self.nodes.get(client) not in online]
            if absent and (new := online - {*self.nodes.values()} - asked):
                asked |= new
                self._identify(sorted(new), online)
            elif all(client in self.nodes for client in awaited) or time.monotonic() > deadline:
                return online
            else:
                if time.monotonic() - told > _TELL_EVERY:
                    told = time.monotonic()
                    missing = len(awaited - self.nodes.keys())
                    text = "klms: waiting for %d of %d clients, %.0f s more; a simulation needs --federation-config %s"
                    log.info(text, missing, len(wanted), deadline - told, f"'num-supernodes={len(wanted)}'")
                time.sleep(0.5)

    def _identify(self, nodes: list[int], online: set[int]) -> None:
        """Ask nodes for their client numbers."""
        question = RecordDict({RECORD: ConfigRecord({"round": self.round})})
        queries = [Message(question, node, MessageType.QUERY) for node in nodes]
        for reply in self.grid.send_and_receive(queries, timeout=_QUERY_TIMEOUT):
            node = reply.metadata.src_node_id
            client = None if reply.has_error() else _metrics(reply).get(CLIENT)
            if not isinstance(client, int):
                reason = reply.error.reason if reply.has_error() else "no number in its answer"
                log.warning("klms: node %d does not say which client it is: %s", node, printable(reason))
            elif self.nodes.get(client, node) in online - {node}:
                log.warning("klms: node %d claims to be client %d, which is node %d", node, client, self.nodes[client])
            else:
                self.nodes[client] = node


def _metrics(reply: Message) -> Mapping[str, object]:
    return reply.content.metric_records.get(METRICS) or {}
