"""ClientApp for the methods of klms: a client of the local engine, on another machine.

A node's config holds the number of its client, `partition-id`. The client's data is its part of the data set or, with
`own-data=true`, the whole data set. If `data-dir` is given, the data set is read from this folder. A function of the
user may return the data instead.

Unless the run is `seeded`, a client's private randomness comes from its operating system. The seed of the randomness
that server and clients share arrives with every request.

The node's context keeps the state of its last round, four bytes per parameter, so that the server sends only what is
new.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from klms.container import read_arrays, write_arrays
from klms.engine.downlink import Downlink
from klms.engine.federation import Federation, Parts
from klms.engine.local import update
from klms.errors import CorruptMessage, InvalidArgument, KLMSError, OutOfSync
from klms.exchange.broadcast import Broadcast
from klms.exchange.sealing import seal
from klms.flower.records import RECORD, REPLY, REQUEST, keep, kept
from klms.flower.settings import run_config
from klms.frame import Frame, Kind
from klms.learning.examples import Examples
from klms.methods.state import State
from klms.methods.table import RunConfig

if TYPE_CHECKING:
    from flwr.clientapp.typing import Mod
    from torch import nn

SERVER = "server"  # the server's public key, if payloads are to be sealed
METRICS = "metrics"
CLIENT = "client"
SECONDS = "seconds."
OUT_OF_SYNC = "klms.out-of-sync"
_KEEPS = "klms.keeps"  # in the node's context: the arrays that the client keeps for itself
_HELD = "klms.held"  # in the node's context: the state of its last round


def client_app(
    config: RunConfig | None = None,
    *,
    model: "Callable[[], nn.Module] | None" = None,
    data: Callable[[int], Any] | None = None,
    loss: Callable[..., Any] | None = None,
    mods: "Sequence[Mod]" = (),
) -> ClientApp:
    """Return the ClientApp of a method; without a `config` it uses the one that `flwr run` passes.

    `model` returns a network, and `data` returns the examples of a client, given its number, in any form that
    `klms.federate` takes; without them, the config names the model and the data. Give the server the same `model` and
    `loss`.
    """
    if (model is None) != (data is None):
        raise InvalidArgument("a client needs both model= and data=, or neither")
    app = ClientApp(mods=list(mods))

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({METRICS: MetricRecord({CLIENT: _client(context)})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client, node = _client(context), context.node_config
        chosen = config or run_config(context.run_config)
        if chosen.private_randomness == "auto":
            chosen = chosen.model_copy(update={"private_randomness": "system"})
        asked = message.content.config_records[RECORD]
        number, seed, broadcast = asked["round"], asked["seed"], asked[REQUEST]
        if not isinstance(number, int) or not isinstance(seed, int) or not isinstance(broadcast, bytes):
            raise CorruptMessage(f"the server's request is of round {number!r} and has the seed {seed!r}")
        chosen = chosen.model_copy(update={"seed": seed})  # the server may have drawn it
        if "data-dir" in node:
            chosen = chosen.model_copy(update={"data_dir": Path(str(node["data-dir"]))})
        federation = _federation(chosen, model, loss)
        if data is not None:
            federation = replace(federation, clients={client: data(client)})
        elif node.get("own-data") and isinstance(federation.clients, Parts):
            everything = federation.clients.dataset
            federation = replace(federation, clients={client: Examples(everything.train_x, everything.train_y)})
        downlink = Downlink(federation.method, chosen)
        try:
            state = downlink.follow(broadcast, _held(context))
        except OutOfSync as error:
            return Message(RecordDict({OUT_OF_SYNC: ConfigRecord({"reason": str(error)})}), reply_to=message)
        keep(context, _HELD, state.to_bytes())
        keeps = kept(context, _KEEPS)
        upload = update(federation, state, client, read_arrays(keeps)[0] if keeps else {})
        if upload.keeps:
            keep(context, _KEEPS, write_arrays(upload.keeps))
        digest = Broadcast.from_bytes(broadcast).digest  # the state's digest, since `follow` raised no error
        payload = Frame(Kind.METHOD, number, client, digest, upload.message).to_bytes()
        metrics = MetricRecord({SECONDS + phase: value for phase, value in upload.seconds.items()})
        if isinstance(server := asked.get(SERVER), bytes):
            payload = seal(payload, server)
        else:  # only without sealing: measurements travel unsealed, and reveal something about the update
            for name, value in upload.measurements.items():
                metrics[name] = value if isinstance(value, float) else list(value)
        return Message(RecordDict({RECORD: ConfigRecord({REPLY: payload}), METRICS: metrics}), reply_to=message)

    return app


def federation_of(
    config: RunConfig, model: "Callable[[], nn.Module] | None", loss: Any, test: Any = None, threads: int = 1
) -> Federation:
    """Return the federation of a run, without clients if the model is the user's own."""
    if model is None:
        return Federation.create(config, threads)
    from klms.learning.network import built_with_seed

    return Federation.of(config, built_with_seed(model, config.seed), {}, test, loss=loss, threads=threads)


# A process of Flower's simulation runs many clients. The cache is not inside `client_app`, since Ray pickles the app.
@lru_cache(maxsize=4)
def _federation(config: RunConfig, model: "Callable[[], nn.Module] | None", loss: Any) -> Federation:
    return federation_of(config, model, loss)


def _held(context: Context) -> State | None:
    """Return the state of the node's last round; None if there is no state, or if it cannot be read."""
    with suppress(KLMSError):
        return State.from_bytes(kept(context, _HELD))
    return None


def _client(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if not isinstance(number, int):
        raise InvalidArgument("this node has no client number: start it with --node-config 'partition-id=0'")
    return number
