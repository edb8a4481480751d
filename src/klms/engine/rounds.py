"""One round, on any engine: send the state, decode and add up the messages as they arrive, evaluate.

If clients determine the length of their messages, all messages of a round are awaited and compared before any of them
is decoded.
"""

import hashlib
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from klms.container import Arrays
from klms.engine import rate_choice, undo
from klms.engine.downlink import Broadcasts, Downlink, Relay
from klms.engine.federation import Federation, participants
from klms.engine.ledger import LedgerRecord
from klms.errors import KLMSError, SideInformationMismatch
from klms.learning.examples import Examples
from klms.methods.base import Method, Outcome, Received, Stopwatch, Upload
from klms.methods.limits import MessageBound
from klms.methods.state import State
from klms.methods.table import RunConfig

Wanted = Sequence[tuple[int, Arrays]]
"""The clients of a round, each with the arrays that it keeps for itself."""


class Clients(Protocol):
    """The clients of a round, as the engine sees them."""

    def run(self, broadcasts: Broadcasts, wanted: Wanted) -> Iterator[Upload]:
        """Yield the uploads of the wanted clients in their order, as many as arrive."""

    def refuse(self, client: int, error: KLMSError) -> None:
        """Record an upload that is refused; raise the error if this engine must not refuse it."""

    def enough(self, count: int) -> bool:
        """Return whether `count` decoded uploads are enough for a round; a round without uploads is always skipped."""

    def report(self) -> Mapping[str, object]:
        """Return further fields of the round's ledger record."""


@dataclass(frozen=True)
class RoundResult:
    """The state after a round, and the record of the round."""

    state: State
    record: LedgerRecord


Results = Generator[RoundResult, None, None]
"""Generator of the results, one per round. Closing it ends the worker processes and anything else that rounds need."""


def rounds(federation: Federation, config: RunConfig, state: State, clients: Clients) -> Results:
    """Run the rounds of the configuration that follow `state`, unless the caller stops earlier."""
    while state.round < config.rounds:
        yield (result := one_round(federation, config, state, clients))
        state = result.state


def one_round(federation: Federation, config: RunConfig, state: State, clients: Clients) -> RoundResult:
    """Run the round that follows `state`.

    If there are too few uploads, the model stays unchanged, but the round's number and keys are never used again.
    """
    clock, method, number = Stopwatch(), federation.method, state.round + 1
    downlink = Downlink(method, config)
    with clock("total"):
        with clock("downlink"):
            broadcasts = downlink.open(state)
        wanted = [(client, state.clients.get(client, {})) for client in participants(config, number)]
        intake = _Intake(method, broadcasts.state)
        for upload in intake.compared(_timed(clients.run(broadcasts, wanted), clock)):
            try:
                with clock("decode"):
                    intake.add(upload)
            except KLMSError as error:
                clients.refuse(upload.client, error)
        with clock("aggregate"):
            relay = intake.relay
            if clients.enough(len(intake.clients)):
                outcome = method.conclude(broadcasts.model, intake.received)
                outcome = rate_choice.after_round(method, config, broadcasts.held, outcome, intake.received)
            else:
                relay = Relay(state)
                unchanged = broadcasts.model.after(broadcasts.model.shared)
                outcome = Outcome(unchanged, {"bits_per_parameter": 0.0, "passed_over": 1.0})
        with clock("downlink"):
            state = downlink.close(state, broadcasts, outcome, intake.reached, relay)
        state = replace(state, clients={**state.clients, **intake.keeps})
        metrics: dict[str, float] = {}
        if federation.test is not None and (number % config.evaluate_every == 0 or number == config.rounds):
            with clock("evaluate"):
                metrics, state = _evaluated(method, state, federation.test, config.loss_factor)
    record = {
        "round": number,
        "clients": intake.clients,
        "digest": intake.digest.hexdigest(),
        "uplink_bytes": sum(intake.message_bytes),
        "message_bytes": intake.message_bytes,
        "downlink_bytes": sum(len(broadcasts.message(client)) for client, _ in wanted),
        **outcome.metrics,
        **intake.measurements(),
        **clients.report(),
        **metrics,
        "seconds": {phase: round(value, 4) for phase, value in sorted((clock.seconds | intake.seconds).items())},
    }
    return RoundResult(state, LedgerRecord.model_validate(record))


def _evaluated(method: Method, state: State, test: Examples, factor: float) -> tuple[dict[str, float], State]:
    """Return the metrics of a state, and the next state: this state or, if its loss has exploded, an earlier one."""
    metrics, state = method.evaluate(state, test)
    loss = metrics.get("nll", metrics.get("loss"))
    if loss is None or factor == 0:
        return metrics, state
    if state.sound is None or not undo.has_exploded(state.sound, loss, factor):
        return metrics, undo.marked_sound(state, loss)
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return finite | {"undone": 1.0}, undo.returned(state, state.sound)


class _Intake:
    """Sums over a round's uploads. Messages are dropped once they are decoded, added and relayed."""

    def __init__(self, method: Method, state: State) -> None:
        self._method = method
        self._state = state
        self._bound = MessageBound(0.0)
        self._measured: dict[str, list[float | Sequence[float]]] = {}
        self.received: Received = method.receive(state)
        self.received.keeps_mean = rate_choice.needs_mean(method, state)
        self.relay = Relay(state)
        self._counted: set[tuple[int, int]] = set()  # clients, each with the round that its message is based on
        self.clients: list[int] = []
        self.reached: dict[int, int] = {}
        """Number of the latest state that each client is known to hold."""
        self.digest = hashlib.blake2b(digest_size=8)
        self.message_bytes: list[int] = []
        self.keeps: dict[int, Arrays] = {}
        self.seconds = {"train": 0.0, "encode": 0.0}

    def compared(self, uploads: Iterator[Upload]) -> Iterator[Upload]:
        """Return the uploads; if their messages have to be compared, wait for all and set a bound first."""
        factor = self._method.compressor_after(self._state).message_factor
        if not factor:
            return uploads
        waiting = list(uploads)
        first = {(upload.client, self._based_on(upload).round): upload.message for upload in reversed(waiting)}
        self._bound = MessageBound(factor, first.values())
        return iter(waiting)

    def add(self, upload: Upload) -> None:
        based_on = self._based_on(upload)
        # Whatever the client sent, it holds the state that it trained from.
        self.reached[upload.client] = max(based_on.round, self.reached.get(upload.client, 0))
        if (upload.client, based_on.round) in self._counted:
            raise SideInformationMismatch(f"client {upload.client} has sent a message of this round already")
        self._bound.check(upload.message)
        decoded = self._method.decode(based_on, upload.client, upload.message)
        staleness = self._state.round - based_on.round
        self.received.add(decoded, len(upload.message), self._method.weight(staleness))
        self._counted.add((upload.client, based_on.round))
        self.clients.append(upload.client)
        self.relay.add(upload.client, upload.message, late=staleness > 0)
        self.digest.update(upload.message)
        self.message_bytes.append(len(upload.message))
        for phase in self.seconds:
            self.seconds[phase] += upload.seconds[phase]
        if upload.keeps:
            self.keeps[upload.client] = upload.keeps
        for name, values in upload.measurements.items():
            self._measured.setdefault(name, []).append(values)

    def _based_on(self, upload: Upload) -> State:
        return upload.based_on or self._state

    def measurements(self) -> dict[str, float | list[float]]:
        return {name: np.mean(values, axis=0).tolist() for name, values in self._measured.items()}


def _timed(uploads: Iterator[Upload], clock: Stopwatch) -> Iterator[Upload]:
    """Yield the uploads; the time spent waiting for them counts as the clients' time."""
    while True:
        with clock("clients"):
            upload = next(uploads, None)
        if upload is None:
            return
        yield upload
