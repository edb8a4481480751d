"""The local engine: rounds run in this process, and clients in this or in parallel processes, with the same bytes."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from klms.container import Arrays
from klms.engine.downlink import Broadcasts
from klms.engine.federation import Federation
from klms.engine.rounds import Results, Wanted, rounds
from klms.engine.workers import pool_of
from klms.errors import KLMSError, OutsizedMessage
from klms.methods.base import Upload
from klms.methods.state import State
from klms.methods.table import RunConfig
from klms.numerics.parallel import cores

log = logging.getLogger("klms")


@dataclass
class LocalClients:
    """Clients on this machine. Unless something is broken, all of them answer with messages that can be decoded.

    A message may still be out of proportion to the others, for example if its client has a lot of data.

    All clients hold the same state after reading their messages. Hence one replica stands for all of them: it reads the
    message to a client that took part in every round, and the result is checked against the server's state.
    """

    work: Callable[[State, Wanted], Iterator[Upload]]
    """Runs all wanted clients of a round, given the state that they hold."""
    replica: State | None = None
    asked: int = 0
    outsized: int = 0
    """Number of messages of this round that were refused for their size."""

    def run(self, broadcasts: Broadcasts, wanted: Wanted) -> Iterator[Upload]:
        self.asked = len(wanted)
        self.outsized = 0
        first = None if broadcasts.state.round else 0  # after a run was resumed, the replica starts from a snapshot
        message = broadcasts.sender.message(self.replica.round if self.replica else first)
        self.replica = broadcasts.downlink.follow(message, self.replica)
        return self.work(State(self.replica.round, self.replica.shared), wanted)

    def refuse(self, client: int, error: KLMSError) -> None:
        if not isinstance(error, OutsizedMessage):
            raise error
        self.outsized += 1
        log.warning("the message of client %d does not count: %s", client, error)

    def enough(self, count: int) -> bool:
        return count > 0

    def report(self) -> dict[str, object]:
        counts = {"ok": self.asked - self.outsized, "outsized": self.outsized}
        return {"replies": counts} if self.outsized else {}


def run(federation: Federation, config: RunConfig, state: State, workers: int) -> Results:
    """Run the rounds of the configuration that follow `state`, unless the caller stops earlier."""
    with clients_in(federation, workers) as clients:
        yield from rounds(federation, config, state, clients)


@contextmanager
def clients_in(federation: Federation, workers: int) -> Iterator[LocalClients]:
    """Run clients in this process, or in `workers` processes that live as long as the run."""
    if workers <= 1:
        yield LocalClients(lambda state, wanted: (update(federation, state, *client) for client in wanted))
        return
    with pool_of(workers, _start_worker, federation.recipe, workers) as pool:
        yield LocalClients(lambda state, wanted: pool.map(partial(_update, state), wanted))


def update(federation: Federation, state: State, client: int, keeps: Arrays | None = None) -> Upload:
    """Do one client's part of a round, from the state that it holds and the arrays that it keeps for itself."""
    rng = federation.private_rng(state.round + 1, client)
    return federation.method.client_update(state, client, federation.examples(client), rng, keeps)


_worker: dict[str, Any] = {}  # a worker process serves one run: its federation


def _start_worker(recipe: Callable[..., Federation], workers: int) -> None:
    _worker["federation"] = recipe(threads=max(1, cores() // workers))


def _update(state: State, client: tuple[int, Arrays]) -> Upload:
    return update(_worker["federation"], state, *client)
