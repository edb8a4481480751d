"""Our methods' ClientApp: a client of the local engine, on another machine.

A node says who it is by its node config: `partition-id`, the client's number. Its data is the client's part of the
split; with `data-dir`, of the data in that folder; with `own-data=true`, all of it. The settings come with the run.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from klms.engine.federation import Federation
from klms.engine.local import update
from klms.flower.frame import METHOD, Ticket, fingerprint
from klms.flower.order import PAYLOAD, RECORD
from klms.flower.settings import run_config
from klms.methods.config import RunConfig

STATE = "state"
ROUND = "klms.round"
METRICS = "metrics"
CLIENT = "client"
SECONDS = "seconds."
_MEMORY = "klms.memory"


def client_app(config: RunConfig | None = None, *, mods: Sequence[Mod] = ()) -> ClientApp:
    """The app. Without a `config` it takes the one that `flwr run` hands out."""
    app = ClientApp(mods=list(mods))

    @app.query()
    def who(message: Message, context: Context) -> Message:
        """Say which client this is."""
        return Message(RecordDict({METRICS: MetricRecord({CLIENT: _number(context)})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train, and encode."""
        client = _number(context)
        federation = _federation(_on_this_node(config or run_config(context.run_config), context), _owns(context))
        broadcast = message.content.array_records[RECORD][STATE].numpy().tobytes()
        number = int(message.content.config_records[ROUND]["round"])  # type: ignore[arg-type]
        upload = update(federation, broadcast, client, _memory(context))
        if upload.memory is not None:
            context.state[_MEMORY] = ArrayRecord({STATE: Array(upload.memory)})
        payload = Ticket(METHOD, number, client, fingerprint([broadcast])).frame(upload.message)
        facts: dict[str, float | list[float]] = {SECONDS + phase: value for phase, value in upload.seconds.items()}
        facts |= {name: list(values) for name, values in upload.facts.items()}
        content = RecordDict({RECORD: ConfigRecord({PAYLOAD: payload}), METRICS: MetricRecord({**facts})})
        return Message(content, reply_to=message)

    return app


def _number(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if not isinstance(number, int):
        raise ValueError("this node does not say which client it is: start it with --node-config 'partition-id=0'")
    return number


def _owns(context: Context) -> bool:
    return bool(context.node_config.get("own-data", False))


def _on_this_node(config: RunConfig, context: Context) -> RunConfig:
    folder = context.node_config.get("data-dir")
    return config if folder is None else config.model_copy(update={"data_dir": Path(str(folder))})


def _federation(config: RunConfig, owns: bool) -> Federation:
    return _made(config.model_dump_json(), owns)


@cache  # a process of Flower's simulation plays many clients
def _made(config: str, owns: bool) -> Federation:
    federation = Federation.create(RunConfig.model_validate_json(config))
    if not owns:
        return federation
    everything = np.arange(len(federation.dataset.train_y))
    return replace(federation, parts=[everything] * federation.method.clients)


def _memory(context: Context) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
    if _MEMORY not in context.state:
        return None
    return context.state.array_records[_MEMORY][STATE].numpy()
