"""Methods that train the parameters themselves: local training, a compressed difference, a step of the server.

`v = w_client - w_global` is what a client sends, through any compressor; the server does
`w += server_lr * mean(v_hat)` (the minus that the paper prints is a slip). With error feedback a client adds to `v`
what the compressor lost the last time, and remembers what it loses this time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from klms.compressors.base import Compressor, Vector
from klms.learning import evaluation
from klms.learning.training import Examples, Schedule, train
from klms.methods.base import Decoder, Method, Outcome, Received, State, Stopwatch, Upload
from klms.methods.facts import message_facts


@dataclass(frozen=True)
class Dense(Method):
    """FedAvg, and what differs from it in the compressor alone."""

    compressor: Compressor
    schedule: Schedule
    server_lr: float
    error_feedback: bool = False

    def init(self) -> State:
        return State(0, {"weights": self.network.kaiming(self.seed), **self.compressor.start()})

    def client_update(self, state: State, client: int, data: Examples, rng: np.random.Generator) -> Upload:
        clock = Stopwatch()
        key = self.key(state.round + 1, client)
        with clock("train"):
            update = self.local_update(state.vector("weights"), data, rng)
        with clock("encode"):
            if self.error_feedback and client in state.memories:
                update = update + np.asarray(state.memories[client], dtype=np.float32)
            message = self.compressor.encode(update, state.shared, key=key, rng=rng)
            memory = update - self.compressor.decode(message, state.shared, key=key) if self.error_feedback else None
        return Upload(client, message, clock.seconds, memory)

    def local_update(self, weights: Vector, data: Examples, rng: np.random.Generator) -> Vector:
        """`w_client - w_global`."""
        return train(self.network, weights, data, self.schedule, rng) - weights

    def decoder(self, state: State) -> Decoder:
        return self.reads(self.compressor, state)

    def aggregate(self, state: State, uploads: Sequence[Upload], vectors: Sequence[Received]) -> Outcome:
        messages = [upload.message for upload in uploads]
        step = np.mean(vectors, axis=0, dtype=np.float64)
        weights = (state.vector("weights") + self.server_lr * step).astype(np.float32)
        side = self.compressor.learn(state.shared, messages, vectors)
        return Outcome(state.after({**side, "weights": weights}), message_facts(messages, self.layout.d))

    def evaluate(self, state: State, data: Examples) -> tuple[dict[str, float], State]:
        weights = state.vector("weights")
        return evaluation.metrics(evaluation.predict(self.network, weights, data), data), state
