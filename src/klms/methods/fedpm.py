"""FedPM (Isik et al., 2023) and FedPM-KLMS: frozen random weights, trained mask probabilities.

The server holds `theta`; a client trains it to `phi` and sends a sample of `Bern(phi)`: as arithmetic-coded bits
(FedPM), or at the cost of its KL to `Bern(theta)` (FedPM-KLMS). BayesAgg computes the next `theta` from the masks and a
Beta prior: `alpha += sum m`, `beta += C - sum m`, `theta = (alpha - 1) / (alpha + beta - 2)` (the paper prints another
numerator). The prior is reset every `reset` rounds; by default, it is reset in every round, and `theta` is the mean
mask. `theta` is kept inside `[margin, 1 - margin]`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from klms.codec import Bernoulli
from klms.compressors.base import Vector
from klms.compressors.mask import draw_mask
from klms.compressors.scheme import Settings
from klms.compressors.schemes import SCHEMES
from klms.container import Arrays
from klms.learning.examples import Examples, Schedule
from klms.methods.base import Measurements, Method, Outcome, Received
from klms.methods.entry import MethodEntry, Setup
from klms.methods.state import State

PRIOR = 1.0  # lambda_0 of the Beta prior
AVERAGED_MASKS = 5


class FedPMSettings(Settings):
    """Settings of methods that train masks."""

    margin: float = Field(0.01, gt=0, lt=0.5, description="FedPM: theta stays in [margin, 1 - margin].")
    gain: float = Field(1.0, gt=0, description="FedPM: factor on the frozen weights; sqrt(2) for deep models.")
    score_spread: float = Field(
        0.0,
        ge=0,
        description="FedPM: standard deviation of the first scores; 0 for probabilities of one half, 1 as in the "
        "authors' code, with which deep models learn faster.",
    )
    reset: int = Field(1, ge=1, description="FedPM: rounds between resets of the Beta prior.")
    layer_kl: bool = Field(False, description="FedPM: record the KL of every layer.")


@dataclass(frozen=True)
class FedPM(Method):
    """Training of probabilistic masks; the compressor decides whether the method is FedPM or FedPM-KLMS."""

    schedule: Schedule
    settings: FedPMSettings

    vector_name: ClassVar[str | None] = "theta"
    noisy_steps: ClassVar[bool] = True
    sampled: ClassVar[bool] = True
    """Whether masks are sampled, in local training and in the final model."""

    @cached_property
    def frozen(self) -> Vector:
        """The weights that the masks select from, a function of the seed."""
        return self.learner.network.signed_constants(self.seed, self.settings.gain)

    def init(self) -> State:
        return State(0, {"theta": self.first_theta(), **self.compressor.start()})

    def first_theta(self) -> Vector:
        rng = np.random.default_rng([self.seed, 0x5C0E])
        scores = self.settings.score_spread * rng.standard_normal(self.layout.d)
        return self.feasible((1 / (1 + np.exp(-scores))).astype(np.float32))

    def train(self, state: State, client: int, data: Examples, rng: np.random.Generator) -> tuple[Vector, Measurements]:
        theta, train = state.vector("theta"), self.learner.train_mask
        phi, loss = train(self.frozen, theta, data, self.schedule, rng, self.penalty, sampled=self.sampled)
        measurements = self.loss_seen(loss)
        if self.settings.layer_kl:
            kl = Bernoulli(phi).kl(Bernoulli(theta))
            measurements["kl_by_layer"] = [round(float(kl[part].mean()), 9) for part in self.layout.parts]
        return phi, measurements

    def aggregate(self, state: State, received: Received) -> Outcome:
        reset, margin = self.settings.reset, self.settings.margin
        fresh = state.round % reset == 0 or "alpha" not in state.private  # the round after a reset may be passed over
        before = [np.full(1, PRIOR) if fresh else state.kept(name) for name in ("alpha", "beta")]
        alpha = received.total  # the sum of this round's masks, reused in place
        alpha += before[0]
        both = float(before[0][0] + before[1][0]) + received.weight  # alpha + beta, the same everywhere
        kept: Arrays = {}
        if (state.round + 1) % reset:  # the next round does not start from the prior
            kept = {"alpha": alpha.astype(np.float32), "beta": both - alpha[:1]}
        alpha -= 1
        alpha /= both - 2
        theta = np.clip(alpha, margin, 1 - margin, out=alpha).astype(np.float32)
        return Outcome(state.after({**received.side(), "theta": theta}, kept), received.statistics())

    def feasible(self, vector: Vector) -> Vector:
        return np.clip(vector, self.settings.margin, 1 - self.settings.margin)

    def sample_mask(self, state: State, number: int = 0) -> npt.NDArray[np.uint8]:
        """Draw a mask from `theta`; together with the seed, the mask is the whole model."""
        rng = np.random.default_rng([self.seed, 0x3A5C, state.round, number])
        return draw_mask(state.vector("theta"), rng if self.sampled else None)

    def parameters(self, state: State) -> Vector:
        return self.frozen * self.sample_mask(state)

    def evaluate(self, state: State, data: Examples) -> tuple[dict[str, float], State]:
        masks = [self.sample_mask(state, number) for number in range(AVERAGED_MASKS if self.sampled else 1)]
        tables = [self.learner.predict(self.frozen * mask, data) for mask in masks]
        metrics = self.learner.metrics(tables[0], data)
        if self.sampled and "accuracy" in metrics:
            metrics["accuracy_averaged"] = self.learner.metrics(np.mean(tables, axis=0), data)["accuracy"]
        return metrics, state


class FedMask(FedPM):
    """FedMask (Li et al., 2021): FedPM without randomness; a mask is 1 where the probability is at least one half.

    A client trains real-valued scores, which are thresholded to a mask, with a straight-through gradient, and sends the
    mask; the server averages the masks, and the clients start their next scores from the average.
    """

    sampled: ClassVar[bool] = False

    def first_theta(self) -> Vector:
        """Return probabilities around one half: with exactly one half everywhere, the first mask would be all ones."""
        rng = np.random.default_rng([self.seed, 0xFED3])
        return rng.uniform(0.4, 0.6, self.layout.d).astype(np.float32)


def _entry(scheme: str, name: str, title: str, reference: str, **overrides: object) -> MethodEntry:
    kind, family = (FedMask, "fedmask") if scheme == "mask-threshold" else (FedPM, "fedpm")

    def make(setup: Setup) -> Method:
        return kind(*setup.parts(scheme), setup.schedule, setup.settings(FedPMSettings))

    settings = (FedPMSettings, SCHEMES[scheme].settings)
    return MethodEntry(name, title, reference, family, settings, make, {"lr": 0.1, **overrides})


FEDPM = _entry("mask", "fedpm", "Probabilistic masks, arithmetic-coded", "Isik et al., ICLR 2023")
FEDPM_KLMS = _entry("mask-klms", "fedpm-klms", "Probabilistic masks at their KL", "Isik et al., AISTATS 2024")
FEDMASK = _entry(
    "mask-threshold", "fedmask", "Masks by threshold, arithmetic-coded", "Li et al., SenSys 2021", lr=0.05, margin=0.48
)
