"""One run of the panel: a server, its clients, real bytes in both directions, all in this process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from klms.container import Array, Arrays
from klms.errors import KLMSError
from klms.exchange import quality
from klms.exchange.client import Client
from klms.exchange.model import statistics_of
from klms.exchange.server import Server
from klms.experiments.panel.cells import STOCK, Coding, Federation
from klms.experiments.panel.optimizers import Optimizer
from klms.learning.panel.tasks import Task, make
from klms.numerics.jit import Float64

_AVERAGED = 3  # last rounds whose metrics are averaged


@dataclass
class Outcome:
    """What a run came to."""

    metric: list[float] = field(default_factory=list)
    """Accuracy in per cent, or loss, of the server's model after each of the last rounds."""
    metric_held: list[float] = field(default_factory=list)
    """The same for the model that clients hold."""
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    float32_bytes: int = 0
    """What both directions would take in float32."""
    rounds: list[dict[str, float]] = field(default_factory=list)

    def to_json(self, *, accuracy: bool, parameters: int) -> dict[str, Any]:
        sent = self.uplink_bytes + self.downlink_bytes
        return {
            "metric": "accuracy" if accuracy else "loss",
            "parameters": parameters,
            "value": round(float(np.mean(self.metric)), 6),
            "value_held": round(float(np.mean(self.metric_held)), 6),
            "uplink_bytes": self.uplink_bytes,
            "downlink_bytes": self.downlink_bytes,
            "times_smaller_total": round(self.float32_bytes / sent, 3),
            "rounds": self.rounds,
        }


def run(federation: Federation, coding: Coding, seed: int) -> dict[str, Any]:
    """Return the results of a run as JSON holds them; `error` says why it ended early, if it did."""
    task = make(federation.kind, federation.clients, seed, skewed=federation.skewed)
    names = Names.of(task.initial())
    try:
        with _changed(coding.constant):
            outcome = _stock(federation, task, names) if coding == STOCK else _coded(federation, coding, task, names)
    except KLMSError as error:
        return {"error": str(error)}
    return outcome.to_json(accuracy=task.accuracy, parameters=names.parameters)


@contextmanager
def _changed(constant: tuple[str, float] | None) -> Iterator[None]:
    """Let a constant of `klms.exchange.quality` have another value for a while."""
    if constant is None:
        yield
        return
    name, value = constant
    usual = getattr(quality, name)
    setattr(quality, name, value)
    try:
        yield
    finally:
        setattr(quality, name, usual)


@dataclass(frozen=True)
class Names:
    """The arrays of a model: those that are one vector, and those that are averaged beside it."""

    vector: tuple[str, ...]
    beside: tuple[str, ...]
    sizes: tuple[int, ...]
    parameters: int

    @classmethod
    def of(cls, arrays: Arrays) -> "Names":
        apart = statistics_of(arrays)
        vector = tuple(name for name, array in arrays.items() if array.dtype.kind == "f" and name not in apart)
        beside = tuple(name for name in arrays if name not in vector)
        sizes = tuple(arrays[name].size for name in vector)
        parameters = sum(array.size for array in arrays.values())
        return cls(vector, beside, sizes, parameters)

    def flat(self, arrays: Arrays) -> Float64:
        return np.concatenate([np.asarray(arrays[name], dtype=np.float64).ravel() for name in self.vector])

    def model(self, vector: Float64, like: Arrays, beside: Arrays) -> dict[str, Array]:
        parts = dict(zip(self.vector, np.split(vector, np.cumsum(self.sizes)[:-1]), strict=True))
        return {
            name: np.asarray(beside[name] if name in beside else parts[name].reshape(array.shape), dtype=array.dtype)
            for name, array in like.items()
        }

    def averaged_beside(self, replies: Sequence[Arrays], weights: Float64) -> dict[str, Array]:
        return {
            name: np.asarray(sum(w * one[name] for w, one in zip(weights, replies, strict=True)))
            for name in self.beside
        }


def _weights(task: Task) -> Float64:
    sizes = np.array([part.size for part in task.parts], dtype=np.float64)
    return np.asarray(sizes / sizes.sum())


def _stock(federation: Federation, task: Task, names: Names) -> Outcome:
    """Train without any compression."""
    optimizer = Optimizer(federation.optimizer)
    weights = _weights(task)
    model: Arrays = task.initial()
    outcome = Outcome(float32_bytes=_float32_bytes(federation, names))
    outcome.uplink_bytes = outcome.float32_bytes // 2
    outcome.downlink_bytes = outcome.float32_bytes // 2
    for number in range(1, federation.rounds + 1):
        trained = [task.trained(model, client, number) for client in range(federation.clients)]
        start = names.flat(model)
        mean = np.asarray(sum(w * (names.flat(one) - start) for w, one in zip(weights, trained, strict=True)))
        model = names.model(start + optimizer.step(mean), model, names.averaged_beside(trained, weights))
        if number > federation.rounds - _AVERAGED:
            outcome.metric.append(task.metric(model))
    outcome.metric_held = outcome.metric
    return outcome


def _coded(federation: Federation, coding: Coding, task: Task, names: Names) -> Outcome:
    rates = {"bits_per_parameter": coding.bits} if coding.quality is None else {"quality": coding.quality}
    server = Server(task.initial(), seed=task.seed, **rates)
    clients = [Client(seed=1000 * task.seed + n) for n in range(federation.clients)]
    optimizer = Optimizer(federation.optimizer)
    weights = _weights(task)
    outcome = Outcome(float32_bytes=_float32_bytes(federation, names))
    for number in range(1, federation.rounds + 1):
        model = server.model
        decoded: list[Arrays] = []
        for n, (client, weight) in enumerate(zip(clients, weights, strict=True)):
            trained = task.trained(client.receive(server.request(str(n))), n, number)
            decoded.append(server.receive(str(n), client.reply(trained), weight=float(weight)))
        start = names.flat(model)
        mean = np.asarray(sum(w * (names.flat(one) - start) for w, one in zip(weights, decoded, strict=True)))
        wanted = names.model(start + optimizer.step(mean), model, names.averaged_beside(decoded, weights))
        server.step(wanted)
        assert server.quality is not None
        outcome.rounds.append({name: _digits(value) for name, value in asdict(server.quality).items()})
        if number > federation.rounds - _AVERAGED:
            outcome.metric.append(task.metric(wanted))
            outcome.metric_held.append(task.metric(server.view))
    outcome.uplink_bytes = server.uplink_bytes
    outcome.downlink_bytes = server.downlink_bytes
    return outcome


def _float32_bytes(federation: Federation, names: Names) -> int:
    return 2 * 4 * names.parameters * federation.clients * federation.rounds


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
