"""One run of the panel: a server, its clients, real bytes in both directions, all in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from klms.errors import KLMSError
from klms.exchange import quality
from klms.exchange.client import Client
from klms.exchange.server import Server
from klms.experiments.panel.cells import Coding, Federation
from klms.experiments.panel.channels import Channel, Exchanged, Names, Uncompressed
from klms.experiments.panel.optimizers import Optimizer
from klms.learning.panel.tasks import Task, make
from klms.numerics.jit import Float64

_AVERAGED = 3  # last rounds whose metrics are averaged
_ANOTHER_ORDER = 1001  # number of a run's first round, so that its batches differ from those of a run that starts at 1


@dataclass
class Outcome:
    """The results of a run."""

    metric: list[float] = field(default_factory=list)
    """Accuracy in per cent, or loss, of the server's model after each of the last rounds."""
    metric_held: list[float] = field(default_factory=list)
    """Metric of the model that clients hold, after each of the last rounds."""
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    float32_bytes: int = 0
    """Bytes that both directions would take in float32."""
    rounds: list[dict[str, float]] = field(default_factory=list)
    curve: list[tuple[int, int, float]] = field(default_factory=list)
    """For some rounds: number, bytes of both directions so far, and metric."""

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
    """Return the results of a run, ready for JSON; `error` gives the reason if the run ended early."""
    task = make(federation.kind, federation.clients, seed, skewed=federation.skewed)
    names = Names.of(task.initial())
    try:
        with _changed(coding.constant):
            channel = _channel(federation, coding, task, names)
            first = _ANOTHER_ORDER if coding.reordered else 1
            outcome = train(task, channel, Optimizer(federation.optimizer), federation.rounds, first=first)
    except KLMSError as error:
        return {"error": str(error)}
    return outcome.to_json(accuracy=task.accuracy, parameters=names.parameters)


@contextmanager
def _changed(constant: tuple[str, float] | None) -> Iterator[None]:
    """Give a constant of `klms.exchange.quality` another value within this block."""
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


def _channel(federation: Federation, coding: Coding, task: Task, names: Names) -> Channel:
    if not coding.compressed:
        return Uncompressed(task.initial(), names, federation.clients)
    rates = {"bits_per_parameter": coding.bits} if coding.quality is None else {"quality": coding.quality}
    server = Server(task.initial(), seed=task.seed, **rates)
    return Exchanged(server, names, [Client(seed=1000 * task.seed + n) for n in range(federation.clients)])


def train(
    task: Task, channel: Channel, optimizer: Optimizer, rounds: int, *, every: int = 0, first: int = 1
) -> Outcome:
    """Train a task over a channel. The metric is measured in the last rounds, and after every `every` rounds.

    Rounds are numbered from `first`; the order in which clients see their examples depends on the number of the round.
    """
    names = Names.of(channel.model)
    weights = _weights(task)
    outcome = Outcome(float32_bytes=2 * 4 * names.parameters * len(weights) * rounds)
    for number in range(1, rounds + 1):
        model = channel.model
        average = channel.average(partial(task.trained, round_=first - 1 + number), weights)
        step = optimizer.step(average.update)
        wanted = names.model(names.flat(model) + step, model, average.beside)
        noise = channel.step(wanted)
        if noise:
            outcome.rounds.append(noise)
        if every and number % every == 0:
            outcome.curve.append((number, channel.uplink_bytes + channel.downlink_bytes, task.metric(wanted)))
        if number > rounds - _AVERAGED:
            outcome.metric.append(task.metric(wanted))
            outcome.metric_held.append(task.metric(channel.view))
    outcome.uplink_bytes = channel.uplink_bytes
    outcome.downlink_bytes = channel.downlink_bytes
    return outcome


def _weights(task: Task) -> Float64:
    sizes = np.array([part.size for part in task.parts], dtype=np.float64)
    return np.asarray(sizes / sizes.sum())
