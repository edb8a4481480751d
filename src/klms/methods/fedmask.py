"""FedMask (Li et al., 2021): FedPM without the dice. Masks are what lies above one half, and 1 bit a parameter.

A client trains real-valued scores whose threshold is the mask, with a straight-through gradient, and sends that mask;
the server averages the masks, and the clients begin their next scores from the average.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from klms.compressors.base import Vector
from klms.learning import evaluation
from klms.learning.training import Examples
from klms.methods.base import State
from klms.methods.fedpm import FedPM

_SPREAD = 0.1  # of the first scores about one half: at one half exactly, a threshold would not know where to begin


@dataclass(frozen=True)
class FedMask(FedPM):
    """Deterministic masks."""

    sampled: ClassVar[bool] = False

    def init(self) -> State:
        state = super().init()
        theta = np.random.default_rng([self.seed, 0xFED3]).uniform(0.5 - _SPREAD, 0.5 + _SPREAD, self.layout.d)
        return State(0, {**state.shared, "theta": theta.astype(np.float32)}, state.private)

    def draw(self, phi: Vector, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
        return (phi >= 0.5).astype(np.uint8)

    def evaluate(self, state: State, data: Examples) -> tuple[dict[str, float], State]:
        table = evaluation.predict(self.network, self.frozen * self.sample_mask(state), data)
        return evaluation.metrics(table, data), state
