"""ClientApp of our methods: a client of the local engine, on another machine.

A node's config holds the number of its client, `partition-id`. The client's data is its part of the split; with
`data-dir`, of the data in that folder; with `own-data=true`, all of that data; or what the user's own function returns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from klms.engine.federation import Federation, Parts
from klms.engine.local import update
from klms.errors import InvalidArgument
from klms.flower.frame import METHOD, MessageFrame, fingerprint
from klms.flower.request import PAYLOAD, RECORD
from klms.flower.settings import run_config
from klms.methods.config import RunConfig

if TYPE_CHECKING:
    from torch import nn

STATE = "state"
ROUND = "klms.round"
METRICS = "metrics"
CLIENT = "client"
SECONDS = "seconds."
_MEMORY = "klms.memory"


def client_app(
    config: RunConfig | None = None,
    *,
    model: "Callable[[], nn.Module] | None" = None,
    data: Callable[[int], Any] | None = None,
    loss: Callable[..., Any] | None = None,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Return the ClientApp of a method; without a `config` it uses the one that `flwr run` passes.

    `model` returns a network and `data` the examples of a client by its number, in any form that `klms.federate` takes;
    without them, the model and the data are those that the config names. Give the server the same `model` and `loss`.
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
        if "data-dir" in node:
            chosen = chosen.model_copy(update={"data_dir": Path(str(node["data-dir"]))})
        broadcast = message.content.array_records[RECORD][STATE].numpy().tobytes()
        number = int(message.content.config_records[ROUND]["round"])  # type: ignore[arg-type]
        federation = _federation(chosen, bool(node.get("own-data")), model, data, loss)
        upload = update(federation, broadcast, client, _memory(context))
        if upload.memory is not None:
            context.state[_MEMORY] = ArrayRecord({STATE: Array(upload.memory)})
        payload = MessageFrame(METHOD, number, client, fingerprint([broadcast])).write(upload.message)
        told: dict[str, float | list[float]] = {SECONDS + phase: value for phase, value in upload.seconds.items()}
        told |= {name: list(values) for name, values in upload.measurements.items()}
        content = RecordDict({RECORD: ConfigRecord({PAYLOAD: payload}), METRICS: MetricRecord({**told})})
        return Message(content, reply_to=message)

    return app


def build(model: "Callable[[], nn.Module]", config: RunConfig) -> "nn.Module":
    """Return the user's network; what it initialises at random is the same on every machine."""
    from klms.learning.network import built_with_seed

    return built_with_seed(model, config.seed)


# A process of Flower's simulation plays many clients. The cache is not inside `client_app`, since Ray pickles the app.
@lru_cache(maxsize=4)
def _federation(
    config: RunConfig,
    owns_data: bool,
    model: "Callable[[], nn.Module] | None",
    data: Callable[[int], Any] | None,
    loss: Callable[..., Any] | None,
) -> Federation:
    if model is not None and data is not None:
        return Federation.of(config, build(model, config), _ByClient(data), loss=loss)
    made = Federation.create(config)
    if owns_data and isinstance(made.clients, Parts):
        everything = np.arange(len(made.clients.dataset.train_y))
        return replace(made, clients=Parts(made.clients.dataset, [everything] * config.clients))
    return made


@dataclass(frozen=True)
class _ByClient:
    """Data of all clients, loaded only for the client that this node is."""

    load: Callable[[int], Any]

    def __getitem__(self, client: int, /) -> Any:
        return self.load(client)


def _client(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if not isinstance(number, int):
        raise InvalidArgument("this node has no client number: start it with --node-config 'partition-id=0'")
    return number


def _memory(context: Context) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
    if _MEMORY not in context.state:
        return None
    return context.state.array_records[_MEMORY][STATE].numpy()
