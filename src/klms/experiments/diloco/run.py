"""One run of `diloco`: all workers in this process, real bytes both sent and received."""

from typing import Any

import numpy as np

from klms.codec import SharedKey
from klms.compressors.base import Compressor
from klms.compressors.layout import Layout
from klms.compressors.sparseloco import SparseLoCo
from klms.compressors.trellis import Trellis
from klms.errors import KLMSError
from klms.exchange.client import Client
from klms.exchange.server import Server
from klms.experiments.diloco.channels import Gathered, PowerSGD
from klms.experiments.diloco.diloco import Way
from klms.experiments.panel.channels import Channel, Exchanged, Names, Uncompressed
from klms.experiments.panel.optimizers import Optimizer
from klms.experiments.panel.run import train
from klms.learning.panel.tasks import Task
from klms.learning.panel.text_workers import make

_EVERY = 5  # rounds between two points of a curve
_MOST_SENT = 4096  # entries of a chunk, all of which may be sent


def run(workers: int, way: Way, seed: int, rounds: int) -> dict[str, Any]:
    """Return the results of a run, ready for JSON; `error` gives the reason if the run ended early."""
    task = make(workers, seed)
    names = Names.of(task.initial())
    try:
        outcome = train(task, _channel(way, workers, task, names), Optimizer("Nesterov"), rounds, every=_EVERY)
    except KLMSError as error:
        return {"error": str(error)}
    told = outcome.to_json(accuracy=False, parameters=names.parameters)
    curve = [(number, sent, round(loss, 4)) for number, sent, loss in outcome.curve]
    return {**told, "communications": rounds, "curve": curve}


def _channel(way: Way, workers: int, task: Task, names: Names) -> Channel:
    model = task.initial()
    if way.scheme == "none":
        return Uncompressed(model, names, workers)
    if way.scheme == "default quality":
        clients = [Client(seed=1000 * task.seed + worker) for worker in range(workers)]
        return Exchanged(Server(model, seed=task.seed), names, clients)
    if way.scheme == "powersgd":
        return PowerSGD(model, names, workers, way.rank, seed=task.seed)
    compressor = _compressor(way, Layout(names.vector, names.shapes))
    feedback = way.feedback or isinstance(compressor, SparseLoCo)
    return Gathered(model, names, workers, compressor, seed=task.seed, feedback=feedback)


def _compressor(way: Way, layout: Layout) -> Compressor:
    assert way.bits is not None
    if way.scheme == "trellis":
        return Trellis(layout, way.bits, threads=1, echo=1.0 if way.feedback else 0.0)
    return _sparse(layout, way.bits)


def _sparse(layout: Layout, bits: float) -> SparseLoCo:
    """Return SparseLoCo with as many entries as fit into a message of `bits` bits per parameter."""
    update = np.random.default_rng(0).standard_normal(layout.d, dtype=np.float32)

    def fits(top: int) -> bool:
        scheme = SparseLoCo(layout, top)
        message = scheme.encode(update, {}, key=SharedKey(0, 0, 0), rng=np.random.default_rng(0))
        return 8 * len(message) <= bits * layout.d

    low, high = 1, _MOST_SENT
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return SparseLoCo(layout, low)
