"""MARINA (Gorbunov et al., 2021): occasionally the full update, otherwise the compressed difference from the last one.

The server keeps a direction `g`. In a full round (probability `full`, drawn from the shared seed, so that nobody has to
announce it) clients send `v(w)` in float32 and `g = mean v`. In other rounds, they compute their update twice, at the
weights of this round and of the previous one, and send `QSGD(v(w) - v(w_before))`; then `g += mean difference`. Either
way `w += server_lr g`. As training settles, the differences shrink, and their coding errors shrink with them.

MARINA's `v` is a gradient, a function of `w` alone. Our `v` is a function of `w` alone as well: a client goes through
its data in the same order in every round, since otherwise the noise of the order would accumulate in `g`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from klms.compressors.base import Compressor, Vector
from klms.compressors.plain import Float32
from klms.compressors.scheme import Settings
from klms.compressors.schemes import SCHEMES
from klms.errors import InvalidArgument
from klms.learning.examples import Examples
from klms.methods import dense
from klms.methods.base import Measurements, Outcome, Received
from klms.methods.dense import Dense
from klms.methods.state import State


class MarinaSettings(Settings):
    """Settings of MARINA."""

    full: float = Field(0.1, gt=0, le=1, description="MARINA: probability of a round of full updates.")


@dataclass(frozen=True)
class Marina(Dense):
    """MARINA. The `compressor` codes the differences; it must be unbiased and use no side information."""

    vector_name: ClassVar[str | None] = None  # clients need the weights of two rounds
    full: float = 0.1

    def __post_init__(self) -> None:
        if self.error_feedback:
            raise InvalidArgument("marina does not take error_feedback: its differences carry the error on")

    def is_full(self, round_: int) -> bool:
        """Return whether clients send full updates in a round, as they must in the first round."""
        return round_ == 1 or np.random.default_rng([self.seed, 0x3A61, round_]).random() < self.full

    def compressor_after(self, state: State) -> Compressor:
        return Float32(self.layout) if self.is_full(state.round + 1) else self.compressor

    def init(self) -> State:
        weights = self.learner.network.initial(self.seed)
        return State(0, {"weights": weights, "weights_before": weights}, {"direction": np.zeros_like(weights)})

    def train(self, state: State, client: int, data: Examples, rng: np.random.Generator) -> tuple[Vector, Measurements]:
        order = [self.seed, 0x04DE4, client]
        update, loss = self.local_update(state.vector("weights"), data, np.random.default_rng(order))
        if not self.is_full(state.round + 1):
            before, _ = self.local_update(state.vector("weights_before"), data, np.random.default_rng(order))
            update = update - before
        return update, self.loss_seen(loss)

    def aggregate(self, state: State, received: Received) -> Outcome:
        full, before = self.is_full(state.round + 1), state.vector("weights")
        direction = received.take_mean() if full else state.kept("direction") + received.take_mean()
        weights = (before + self.server_lr * direction).astype(np.float32)
        kept = {**state.private, "direction": direction.astype(np.float32)}
        after = state.after({"weights": weights, "weights_before": before}, kept)
        return Outcome(after, received.statistics() | {"full_round": float(full)})


MARINA = dense.entry(
    SCHEMES["qsgd"],
    "marina",
    Marina,
    settings=(MarinaSettings,),
    overrides={"levels": 16, "bucket": 256},  # differences of updates need finer rounding than updates
    title="QSGD of differences, now and then the full update",
    reference="Gorbunov et al., ICML 2021",
    family="marina",
)
