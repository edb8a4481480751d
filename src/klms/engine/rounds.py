"""One round, whoever runs the clients: send the state out, collect the messages, read them, aggregate, evaluate."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from klms.codec import KLMSError
from klms.compressors.base import reasonable
from klms.engine.federation import Federation, participants
from klms.methods.base import Outcome, Received, State, Stopwatch, Upload
from klms.methods.config import RunConfig

Memory = npt.NDArray[np.generic] | None


class Clients(Protocol):
    """Those who train."""

    def run(self, broadcast: bytes, wanted: Sequence[tuple[int, Memory]]) -> list[Upload]:
        """The uploads of the clients that are wanted, as many as come."""
        ...

    def refuse(self, upload: Upload, why: KLMSError) -> None:
        """An upload could not be read. Raise if that must not happen."""
        ...

    def enough(self, received: int) -> bool:
        """Whether so many uploads make a round."""
        ...

    def facts(self) -> Mapping[str, object]:
        """What the ledger should know of the round besides."""
        ...


@dataclass(frozen=True)
class RoundResult:
    """A round, done."""

    state: State
    record: dict[str, object]
    """Its line in the ledger."""


def rounds(federation: Federation, config: RunConfig, state: State, clients: Clients) -> Iterator[RoundResult]:
    """Every round after those that `state` has behind it."""
    while state.round < config.rounds:
        yield (result := one_round(federation, config, state, clients))
        state = result.state


def one_round(federation: Federation, config: RunConfig, state: State, clients: Clients) -> RoundResult:
    """The round after those that `state` has behind it.

    With too few uploads the model stays as it is, and the round is over all the same: its number, and with it the keys
    of its messages, is never used again.
    """
    clock = Stopwatch()
    method = federation.method
    number = state.round + 1
    with clock("total"):
        broadcast = state.to_bytes(private=False)
        wanted = [(client, state.memories.get(client)) for client in participants(config, number)]
        with clock("clients"):
            sent = clients.run(broadcast, wanted)
        with clock("decode"):
            uploads, vectors = _read(federation, state, sent, clients)
        with clock("aggregate"):
            if clients.enough(len(uploads)):
                outcome = method.aggregate(state, uploads, vectors)
            else:
                outcome = Outcome(state.after(state.shared), {"bits_per_parameter": 0.0, "passed_over": 1.0})
        state = outcome.state.remembering(uploads)
        metrics: dict[str, float] = {}
        if number % config.evaluate_every == 0 or number == config.rounds:
            with clock("evaluate"):
                metrics, state = method.evaluate(state, federation.test)
    seconds = clock.seconds
    for phase in ("train", "encode"):
        seconds[phase] = sum(upload.seconds[phase] for upload in uploads)
    record = {
        "round": number,
        "clients": [upload.client for upload in uploads],
        "digest": _digest(uploads),
        "uplink_bytes": sum(len(upload.message) for upload in uploads),
        "downlink_bytes": len(broadcast) * len(wanted),
        **outcome.facts,
        **_means(uploads),
        **clients.facts(),
        **metrics,
        "seconds": {phase: round(value, 4) for phase, value in sorted(seconds.items())},
    }
    return RoundResult(state, record)


def _read(
    federation: Federation, state: State, sent: Sequence[Upload], clients: Clients
) -> tuple[list[Upload], list[Received]]:
    """The uploads that can be read, and what is in them."""
    decode = federation.method.decoder(state)
    uploads, vectors = [], []
    for upload in sent:
        try:
            vectors.append(reasonable(decode(upload)))
        except KLMSError as error:
            clients.refuse(upload, error)
        else:
            uploads.append(upload)
    return uploads, vectors


def _digest(uploads: Sequence[Upload]) -> str:
    """Of all messages of a round, in order: two engines, or a run and its repetition, show here that they agree."""
    state = hashlib.blake2b(digest_size=8)
    for upload in uploads:
        state.update(upload.message)
    return state.hexdigest()


def _means(uploads: Sequence[Upload]) -> dict[str, list[float]]:
    """What clients told the ledger, averaged."""
    names = dict.fromkeys(name for upload in uploads for name in upload.facts)
    told = {name: [upload.facts[name] for upload in uploads if name in upload.facts] for name in names}
    return {name: np.mean(values, axis=0).tolist() for name, values in told.items()}
