"""Federated Langevin dynamics: SGLD, QLSD (Vono et al., 2022) and SGLD-KLMS.

`U_n` is the negative log-likelihood of client `n`'s data plus `1/N` of the prior's, `H_n` an estimate of its gradient
from one batch. The server does

    theta -= gamma (N / C) sum H_hat  +  sqrt(2 gamma) xi                                      (paper, eq. 2)

With SGLD-KLMS the noise is in what arrives and the server adds none: `H_hat` is a sample of `N(H_n, s^2)` with
`s^2 = 2 C / (gamma N^2)`, so that the aggregate has variance exactly `2 gamma` (the paper's `2 / (gamma C^2)` is off
for independent noise). Accuracy is that of the posterior average over thinned samples after burn-in.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from klms.compressors.base import Compressor
from klms.learning import evaluation
from klms.learning.training import Examples, potential_gradient
from klms.methods.base import Decoder, Method, Outcome, Received, State, Stopwatch, Upload
from klms.methods.facts import message_facts


def noise_std(gamma: float, clients: int, per_round: int) -> float:
    """`s`: what each client adds so that the aggregate has variance `2 gamma`."""
    return math.sqrt(2 * per_round / (gamma * clients**2))


@dataclass(frozen=True)
class Langevin(Method):
    """`noise_arrives`: the compressor's samples bring the noise."""

    compressor: Compressor
    noise_arrives: bool
    batch: int
    gamma: float
    precision: float
    """Of the Gaussian prior; each client takes `1/N` of it."""
    burn_in: int

    def init(self) -> State:
        return State(0, {"weights": self.network.kaiming(self.seed), **self.compressor.start()})

    def client_update(self, state: State, client: int, data: Examples, rng: np.random.Generator) -> Upload:
        clock = Stopwatch()
        point = state.vector("weights")
        with clock("train"):
            share = self.precision / self.clients
            gradient = potential_gradient(self.network, point, data, self.batch, share, rng)
        with clock("encode"):
            key = self.key(state.round + 1, client)
            message = self.compressor.encode(gradient, state.shared, key=key, rng=rng)
        return Upload(client, message, clock.seconds)

    def decoder(self, state: State) -> Decoder:
        return self.reads(self.compressor, state)

    def aggregate(self, state: State, uploads: Sequence[Upload], vectors: Sequence[Received]) -> Outcome:
        messages = [upload.message for upload in uploads]
        total = np.sum(vectors, axis=0, dtype=np.float64) * (self.clients / len(uploads))
        weights = state.vector("weights") - self.gamma * total
        if not self.noise_arrives:
            rng = np.random.default_rng([self.seed, 0x5E4E, state.round + 1])
            weights += math.sqrt(2 * self.gamma) * rng.standard_normal(weights.size)
        side = self.compressor.learn(state.shared, messages, vectors)
        after = state.after({**side, "weights": weights.astype(np.float32)})
        return Outcome(after, message_facts(messages, self.layout.d))

    def evaluate(self, state: State, data: Examples) -> tuple[dict[str, float], State]:
        """Of the posterior average so far; before burn-in, of the current sample."""
        table = evaluation.predict(self.network, state.vector("weights"), data)
        current = evaluation.metrics(table, data)["accuracy"]
        private = {}
        if state.round > self.burn_in:
            count = int(state.private.get("samples", np.array(0))) + 1
            total = table if count == 1 else state.kept("posterior") + table
            private = {"posterior": total, "samples": np.array(count)}
            table = total / count
        metrics = evaluation.metrics(table, data) | {"accuracy_of_sample": current}
        return metrics, replace(state, private=private)
