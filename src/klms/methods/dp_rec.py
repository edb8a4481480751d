"""DP-REC's training: FedAvg through DP-REC's compressor. The ledger records the privacy that the noise of the messages
provides.

A message is nearly a sample of `N(clip(v), sigma^2)`: the Gaussian mechanism with sensitivity `2 clip`, since replacing
all of a client's data can move its clipped update that far. `(epsilon, delta)` is a client's privacy against everybody,
including the server. The epsilon is computed by Renyi accounting for the largest number of rounds in which the client
can have taken part. Whoever can reproduce the noise can subtract it, so no epsilon is reported unless private
randomness comes from the operating system. The epsilon ignores two facts: the candidate that is sent is only nearly a
sample of this distribution, and rounds may have been repeated after a server was killed. Messages do not report their
KL, because the KL would reveal the norm of the update.

Mind the size of epsilon: noise that lets a model of 400,000 parameters learn from ten clients gives an epsilon in the
millions, which is no privacy. DP-REC is included as a compressor, as in the paper.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar

from pydantic import Field

from klms.codec import MAX_BLOCK_SIZE
from klms.compressors.block_coder import ADAPTIVE, BlockSettings
from klms.compressors.klms_gaussian import DPREC
from klms.compressors.scheme import Needs, Settings
from klms.errors import InvalidArgument, MissingExtra
from klms.methods.base import Measurements, Method, Outcome, Received
from klms.methods.dense import Dense, DenseSettings
from klms.methods.entry import MethodEntry, Setup
from klms.methods.limits import RobustSettings
from klms.methods.state import State


class DPRECSettings(Settings):
    """Settings of DP-REC."""

    needs: ClassVar[Needs] = {"delta": {"private_randomness": "system"}}

    clip: float = Field(1.0, gt=0, description="DP-REC: largest norm of an update.")
    sigma: float = Field(0.004, gt=0, description="DP-REC: standard deviation of the noise on each coordinate.")
    delta: float = Field(
        1e-5, gt=0, lt=1, description="DP-REC: delta of the privacy report, which needs private_randomness system."
    )


@cache
def epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """Return the epsilon of `rounds` Gaussian mechanisms whose noise is `noise_multiplier` times the sensitivity."""
    try:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise MissingExtra.told("the privacy report needs dp-accounting", "privacy") from error
    return float(RdpAccountant().compose(GaussianDpEvent(noise_multiplier), rounds).get_epsilon(delta))


@dataclass(frozen=True)
class DPRECTraining(Dense):
    """FedAvg with clipped, noisy updates."""

    privacy: DPRECSettings = field(default_factory=DPRECSettings)
    seeded: bool = True
    """Whether the noise can be reproduced; then there is no privacy to report."""

    def loss_seen(self, loss: float) -> Measurements:
        """Return nothing if privacy is reported: the loss reveals something about the data, and no noise hides it."""
        return super().loss_seen(loss) if self.seeded else {}

    def aggregate(self, state: State, received: Received) -> Outcome:
        outcome = super().aggregate(state, received)
        if self.seeded:
            return outcome
        own = self.privacy
        spent = epsilon(own.sigma / (2 * own.clip), state.round + 1, own.delta)
        return replace(outcome, metrics={**outcome.metrics, "epsilon": round(spent, 6), "delta": own.delta})


def _make(setup: Setup) -> Method:
    dense, own, blocks = setup.settings(DenseSettings), setup.settings(DPRECSettings), setup.settings(BlockSettings)
    if dense.error_feedback:
        raise InvalidArgument("dp-rec does not take error_feedback: it would later send what the noise hides")
    if not setup.config.seeded:
        epsilon(1.0, 1, own.delta)  # so that a missing accountant is reported before anything is trained
    size = blocks.fixed or max(1, round(blocks.target * 2 * math.log(2) * setup.layout.d * (own.sigma / own.clip) ** 2))
    # The other selections do not sample from the mechanism's distribution.
    blocks = blocks.model_copy(update={"fixed": min(size, MAX_BLOCK_SIZE), "selection": "sample"})
    coder = replace(blocks.coder(setup.layout.d, setup.threads), tells_kl=False)
    compressor = DPREC(own.clip, own.sigma, coder)
    parts = *setup.parts(compressor), setup.schedule, dense.server_lr
    return DPRECTraining(*parts, privacy=own, seeded=setup.config.seeded, robust=setup.robust)


_SETTINGS = (DenseSettings, RobustSettings, BlockSettings, DPRECSettings)
DP_REC = MethodEntry(
    "dp-rec",
    "Noisy updates in fixed blocks at their KL",
    "Triastcyn et al., 2021",
    "dp-rec",
    _SETTINGS,
    _make,
    unused=frozenset({"selection", *ADAPTIVE}),
)
