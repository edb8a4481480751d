"""The local engine: rounds in this process, clients in parallel processes if wanted. Same bytes either way."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import numpy.typing as npt

from klms.engine.federation import Federation, participants
from klms.methods.base import State, Stopwatch, Upload
from klms.methods.config import RunConfig

Memory = npt.NDArray[np.generic] | None
Run = Callable[[bytes, Sequence[tuple[int, Memory]]], list[Upload]]


@dataclass(frozen=True)
class RoundResult:
    """A round, done."""

    state: State
    record: dict[str, object]
    """Its line in the ledger."""


def rounds(federation: Federation, config: RunConfig, state: State, workers: int) -> Iterator[RoundResult]:
    """Every round after those that `state` has behind it."""
    with clients_in(federation, config, workers) as run:
        while state.round < config.rounds:
            yield (result := one_round(federation, config, state, run))
            state = result.state


def one_round(federation: Federation, config: RunConfig, state: State, run: Run) -> RoundResult:
    """Send the state out, collect the messages, aggregate, and evaluate if it is time to."""
    clock = Stopwatch()
    method = federation.method
    number = state.round + 1
    with clock("total"):
        broadcast = state.to_bytes(private=False)
        with clock("clients"):
            uploads = run(broadcast, [(client, state.memories.get(client)) for client in participants(config, number)])
        outcome = method.server_update(state, uploads)
        state = outcome.state.remembering(uploads)
        metrics: dict[str, float] = {}
        if number % config.evaluate_every == 0 or number == config.rounds:
            with clock("evaluate"):
                metrics, state = method.evaluate(state, federation.test)
    seconds = clock.seconds | dict(outcome.seconds)
    for phase in ("train", "encode"):
        seconds[phase] = sum(upload.seconds[phase] for upload in uploads)
    record = {
        "round": number,
        "clients": [upload.client for upload in uploads],
        "uplink_bytes": sum(len(upload.message) for upload in uploads),
        "downlink_bytes": len(broadcast) * len(uploads),
        **outcome.facts,
        **_means(uploads),
        **metrics,
        "seconds": {phase: round(value, 4) for phase, value in sorted(seconds.items())},
    }
    return RoundResult(state, record)


def _means(uploads: Sequence[Upload]) -> dict[str, list[float]]:
    """What clients told the ledger, averaged."""
    names = dict.fromkeys(name for upload in uploads for name in upload.facts)
    return {name: np.mean([upload.facts[name] for upload in uploads], axis=0).tolist() for name in names}


@contextmanager
def clients_in(federation: Federation, config: RunConfig, workers: int) -> Iterator[Run]:
    """How clients are run: here, or in `workers` processes that live as long as the run."""
    if workers <= 1:
        yield lambda broadcast, clients: [update(federation, broadcast, *client) for client in clients]
        return
    with ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        start = (config.model_dump_json(), workers)
        pool = ProcessPoolExecutor(workers, spawn, initializer=_start_worker, initargs=start)
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        yield lambda broadcast, clients: list(pool.map(_update, [broadcast] * len(clients), clients))


def update(federation: Federation, broadcast: bytes, client: int, memory: Memory = None) -> Upload:
    """One client's part of a round, from the bytes that it received and what it remembers."""
    state = State.from_bytes(broadcast)
    if memory is not None:
        state = replace(state, memories={client: memory})
    rng = federation.method.private_rng(state.round + 1, client)
    return federation.method.client_update(state, client, federation.examples(client), rng)


_worker: dict[str, Any] = {}  # a worker process serves one run: its federation


def end_with_parent() -> None:
    """A worker whose parent was killed must not go on alone: it would run on what the next start runs too."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        watch = threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True)
        watch.start()


def _start_worker(config: str, workers: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    end_with_parent()
    threads = max(1, (os.cpu_count() or 1) // workers)
    _worker["federation"] = Federation.create(RunConfig.model_validate_json(config), threads)


def _update(broadcast: bytes, client: tuple[int, Memory]) -> Upload:
    return update(_worker["federation"], broadcast, *client)
