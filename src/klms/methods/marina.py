"""MARINA (Gorbunov et al., 2021): now and then the full update, else the compressed difference to the last one.

The server keeps a direction `g`. In a full round (probability `full`, drawn from the shared seed, so that nobody has to
say which) clients send `v(w)` in float32 and `g = mean v`. In the others they compute their update twice, at the
weights of this round and of the one before, and send `QSGD(v(w) - v(w_before))`; then `g += mean of these`. Either way
`w += server_lr g`. Differences shrink as training settles, and so does their error.

MARINA's `v` is a gradient, a function of `w` alone. So is ours: a client goes through its data in the same order in
every round, or the noise of the order would pile up in `g`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from klms.compressors.base import Compressor
from klms.compressors.float32 import Float32
from klms.learning.training import Examples
from klms.methods.base import Decoder, Outcome, Received, State, Stopwatch, Upload
from klms.methods.dense import Dense
from klms.methods.facts import message_facts


@dataclass(frozen=True)
class Marina(Dense):
    """`compressor` is for the differences; it must be unbiased and without side information."""

    full: float = 0.1

    def is_full(self, round_: int) -> bool:
        """Whether clients send whole updates in a round; in the first they must."""
        return round_ == 1 or np.random.default_rng([self.seed, 0x3A61, round_]).random() < self.full

    def scheme(self, round_: int) -> Compressor:
        """What a round's messages are made with."""
        return Float32(self.layout.d) if self.is_full(round_) else self.compressor

    def init(self) -> State:
        weights = self.network.kaiming(self.seed)
        return State(0, {"weights": weights, "weights_before": weights}, {"direction": np.zeros_like(weights)})

    def client_update(self, state: State, client: int, data: Examples, rng: np.random.Generator) -> Upload:
        clock = Stopwatch()
        number = state.round + 1
        order = [self.seed, 0x04DE4, client]
        with clock("train"):
            update = self.local_update(state.vector("weights"), data, np.random.default_rng(order))
            if not self.is_full(number):
                update = update - self.local_update(state.vector("weights_before"), data, np.random.default_rng(order))
        with clock("encode"):
            message = self.scheme(number).encode(update, {}, key=self.key(number, client), rng=rng)
        return Upload(client, message, clock.seconds)

    def decoder(self, state: State) -> Decoder:
        return self.reads(self.scheme(state.round + 1), state)

    def aggregate(self, state: State, uploads: Sequence[Upload], vectors: Sequence[Received]) -> Outcome:
        number = state.round + 1
        mean = np.mean(vectors, axis=0, dtype=np.float64)
        direction = mean if self.is_full(number) else state.kept("direction") + mean
        before = state.vector("weights")
        weights = (before + self.server_lr * direction).astype(np.float32)
        facts = message_facts([upload.message for upload in uploads], self.layout.d)
        kept = {"direction": np.asarray(direction, dtype=np.float32)}
        after = state.after({"weights": weights, "weights_before": before}, kept)
        return Outcome(after, facts | {"full_round": float(self.is_full(number))})
