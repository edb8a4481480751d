"""The bench behind `klms bench history`: what the dense scheme gains from the last global update, round by round.

Clients train as in the runs of `updates.py`, but send their updates through the scheme `klms`, so that the history is
what they would really hold. Every update is encoded and decoded twice, with the history and without.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from klms.benchmarks.updates import federation_of
from klms.codec import Decoded

RATES = (0.1, 0.3, 1.0, 2.0)


@dataclass(frozen=True)
class Row:
    """A round: averages over its clients."""

    kind: str
    rate: float
    round: int
    plain_bits: float
    """Measured bits per parameter without the history."""
    plain_error: float
    """Squared error of an update over its own square."""
    bits: float
    error: float

    @property
    def ratio(self) -> float:
        return self.error / self.plain_error


def run(*, kind: str = "lenet", rates: Sequence[float] = RATES, rounds: int = 6) -> Iterator[Row]:
    """Yield a row for every rate and every round after the first, which has no history."""
    for rate in rates:
        federation, method = federation_of(kind, method="trellis", rate=rate, downlink="coded")
        state = method.init()
        for number in range(1, rounds + 1):
            received, measured = method.receive(state), []
            for client in range(method.clients):
                rng = method.private_rng(number, client)
                update, _ = method.local_update(state.vector("weights"), federation.examples(client), rng)
                sent = []
                for side in ({}, state.shared):
                    key = method.key(number, client)
                    message = method.compressor.encode(update, side, key=key, rng=np.random.default_rng([1, client]))
                    decoded = method.compressor.decode(message, side, key=key)
                    error = float(np.sum((decoded.vector - update) ** 2, dtype=np.float64))
                    sent += [8 * len(message) / update.size, error / float(np.sum(update**2, dtype=np.float64))]
                measured.append(sent)
                received.add(Decoded(decoded.vector), len(message))
            state = method.aggregate(state, received).state
            if number > 1:
                yield Row(kind, rate, number, *np.mean(measured, axis=0).tolist())


def as_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return the rows for machines."""
    return [asdict(row) | {"ratio": row.ratio} for row in rows]
