"""Real updates on which schemes are measured: those of FedAvg clients for five kinds of models, made once and kept."""

import io
import json
from typing import Any

import numpy as np

from klms import files
from klms.compressors.base import Vector
from klms.compressors.layout import Layout
from klms.data.cache import location
from klms.engine.federation import Federation
from klms.methods.dense import Dense
from klms.methods.table import RunConfig

_CLIENTS = 10
_ROUNDS = 3
_SGD = {"optimizer": "sgd", "batch": 32}
_ADAM = {"optimizer": "adam", "batch": 16}
_RUNS: dict[str, dict[str, Any]] = {
    "lenet": {"data": "mnist", "model": "lenet", "images": 6000, "lr": 0.1, **_SGD},
    "conv6": {"data": "cifar10", "model": "conv6", "images": 2000, "lr": 0.05, **_SGD},
    "lstm": {"data": "chitchat", "model": "lstm", "split": "natural", "images": 4000, "lr": 0.01, **_ADAM},
}
"""Settings of the runs that yield updates in round 3: LeNet on MNIST, CONV6 on CIFAR-10, an LSTM on chat."""
_TASKS = ("transformer", "lora")
"""Tasks of the panel that yield updates in round 3: a transformer on MNIST, LoRA adapters on Fashion-MNIST."""
KINDS = (*_RUNS, *_TASKS)


def real_updates(kind: str, clients: int) -> tuple[Layout, list[Vector]]:
    """Return the updates of up to 10 clients; they are kept with the data sets (see `klms data`)."""
    path = location(f"real-updates-{kind}")
    if not path.exists():
        trained, updates = _of_task(kind) if kind in _TASKS else _of_run(kind)
        content = io.BytesIO()
        np.savez(content, layout=np.array(json.dumps([trained.names, trained.shapes])), updates=updates)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, content.getvalue())
    with np.load(path, allow_pickle=False) as stored:
        names, shapes = json.loads(str(stored["layout"]))
        return Layout(tuple(names), tuple(map(tuple, shapes))), list(stored["updates"][:clients])


def _of_run(kind: str) -> tuple[Layout, list[Vector]]:
    common = {"method": "fedavg", "clients": _CLIENTS, "epochs": 1}
    federation = Federation.create(RunConfig.model_validate(common | _RUNS[kind]))
    method = federation.method
    assert isinstance(method, Dense)
    weights = method.init().vector("weights")
    updates: list[Vector] = []
    for number in range(1, _ROUNDS + 1):
        updates = [
            method.local_update(weights, federation.examples(client), method.private_rng(number, client))[0]
            for client in range(_CLIENTS)
        ]
        weights = (weights + np.mean(updates, axis=0)).astype(np.float32)
    return method.layout, updates


def _of_task(kind: str) -> tuple[Layout, list[Vector]]:
    from klms.learning.panel.tasks import make

    task = make(kind, _CLIENTS, seed=0)
    first = task.initial()
    layout = Layout(tuple(first), tuple(array.shape for array in first.values()))
    weights = np.concatenate([array.reshape(-1) for array in first.values()])
    updates: list[Vector] = []
    for number in range(1, _ROUNDS + 1):
        arrays = {name: part.copy() for name, part in layout.split(weights)}
        trained = [task.trained(arrays, client, number) for client in range(_CLIENTS)]
        updates = [np.concatenate([array.reshape(-1) for array in one.values()]) - weights for one in trained]
        weights = (weights + np.mean(updates, axis=0)).astype(np.float32)
    return layout, updates
