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

from klms.codec import KLMSError
from klms.engine.federation import Federation
from klms.engine.rounds import Memory, RoundResult, rounds
from klms.methods.base import State, Upload
from klms.methods.config import RunConfig


@dataclass(frozen=True)
class LocalClients:
    """Clients of this machine. All answer, and what they send is sound, or something is broken."""

    run_all: Callable[[bytes, Sequence[tuple[int, Memory]]], list[Upload]]

    def run(self, broadcast: bytes, wanted: Sequence[tuple[int, Memory]]) -> list[Upload]:
        """In order."""
        return self.run_all(broadcast, wanted)

    def refuse(self, upload: Upload, why: KLMSError) -> None:
        """Never."""
        raise why

    def enough(self, received: int) -> bool:
        """All came."""
        return True

    def facts(self) -> dict[str, object]:
        """None."""
        return {}


def run(federation: Federation, config: RunConfig, state: State, workers: int) -> Iterator[RoundResult]:
    """Every round after those that `state` has behind it."""
    with clients_in(federation, config, workers) as clients:
        yield from rounds(federation, config, state, clients)


@contextmanager
def clients_in(federation: Federation, config: RunConfig, workers: int) -> Iterator[LocalClients]:
    """How clients are run: here, or in `workers` processes that live as long as the run."""
    if workers <= 1:
        yield LocalClients(lambda broadcast, wanted: [update(federation, broadcast, *client) for client in wanted])
        return
    with ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        start = (config.model_dump_json(), workers)
        pool = ProcessPoolExecutor(workers, spawn, initializer=_start_worker, initargs=start)
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        yield LocalClients(lambda broadcast, wanted: list(pool.map(_update, [broadcast] * len(wanted), wanted)))


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
