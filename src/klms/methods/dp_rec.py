"""DP-REC's training: FedAvg through its compressor, with the privacy that its noise buys in the ledger.

What the figures cover. A message is (nearly) a sample of `N(clip(v), sigma^2)`: the Gaussian mechanism with sensitivity
`2 clip`, since replacing all of a client's data can move its clipped update that far. `(epsilon, delta)` is what that
mechanism gives a client against everybody, the server included, after as many rounds as it has taken part in at most,
by Renyi accounting (Google's dp-accounting). What they do not cover: that an index chosen among `2^b` candidates is
only nearly such a sample; that a simulation's private randomness can be reproduced; and amplification by sampling,
which a server that sees who takes part undoes. Messages do not say their KL, which would give the update's norm away.

Mind the size of epsilon: noise that lets a model of 400,000 parameters learn from ten clients gives one in the
millions, which is no privacy. DP-REC is here as the paper has it, as a compressor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from klms.methods.base import Outcome, Received, State, Upload
from klms.methods.dense import Dense


@cache
def epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """Of `rounds` Gaussian mechanisms with `noise_multiplier` times the sensitivity, for `delta`."""
    try:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise ValueError("the privacy report needs dp-accounting: pip install 'klms[privacy]'") from error
    return float(RdpAccountant().compose(GaussianDpEvent(noise_multiplier), rounds).get_epsilon(delta))


@dataclass(frozen=True)
class DPRECTraining(Dense):
    """`clip` and `sigma` are the compressor's."""

    clip: float = 1.0
    sigma: float = 1.0
    delta: float = 1e-5

    def aggregate(self, state: State, uploads: Sequence[Upload], vectors: Sequence[Received]) -> Outcome:
        outcome = super().aggregate(state, uploads, vectors)
        spent = epsilon(self.sigma / (2 * self.clip), state.round + 1, self.delta)
        facts = {**outcome.facts, "epsilon": round(spent, 6), "delta": self.delta}
        return Outcome(outcome.state, facts)
