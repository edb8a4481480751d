"""Federated Langevin dynamics: SGLD, QLSD (Vono et al., 2022) and SGLD-KLMS.

`U_n` is the negative log-likelihood of client `n`'s data plus `1/N` of the negative logarithm of the prior, and `H_n`
is an estimate of the gradient of `U_n` from one batch. The server computes

    theta -= gamma (N / C) sum H_hat  +  sqrt(2 gamma) xi                                      (paper, eq. 2)

With SGLD-KLMS, the messages contain the noise and the server adds none: `H_hat` is a sample of `N(H_n, s^2)` with
`s^2 = 2 C / (gamma N^2)`, so that the aggregate has variance exactly `2 gamma` (the paper's `2 / (gamma C^2)` is wrong
for independent noise). The accuracy is that of the posterior average over thinned samples after burn-in.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from klms.compressors.base import Vector
from klms.compressors.block_coder import BlockSettings
from klms.compressors.klms_gaussian import KLMSGaussian
from klms.compressors.scheme import Settings
from klms.compressors.schemes import SCHEMES
from klms.errors import InvalidArgument
from klms.learning.examples import Examples
from klms.methods.base import Measurements, Method, Outcome, Received
from klms.methods.entry import MethodEntry, Setup
from klms.methods.limits import RobustSettings
from klms.methods.state import State

_UNUSED = frozenset({"epochs", "lr", "optimizer"})  # a client computes one gradient of one batch in a round


class LangevinSettings(Settings):
    """Settings of Langevin dynamics."""

    gamma: float = Field(
        1e-5, ge=0, description="Langevin: step size; 0 for 0.1 / number of training examples, but at most 1e-5."
    )
    precision: float = Field(5.0, ge=0, description="Langevin: precision of the Gaussian prior.")
    burn_in: int = Field(0, ge=0, description="Langevin: rounds before samples count.")


def default_gamma(examples: int | None) -> float:
    """Return a step size for a potential that grows with the number of examples.

    With this step size, the noise still lets models learn.
    """
    if examples is None:
        raise InvalidArgument("give a gamma: about 0.1 / number of training examples of all clients, at most 1e-5")
    return min(1e-5, 0.1 / examples)


def noise_std(gamma: float, clients: int, per_round: int) -> float:
    """Return `s`, the standard deviation of each client's noise at which the aggregate has a variance of `2 gamma`."""
    return math.sqrt(2 * per_round / (gamma * clients**2))


@dataclass(frozen=True)
class Langevin(Method):
    """Clients send gradients instead of updates, and the result is a posterior instead of a point."""

    server_only: ClassVar[frozenset[str]] = frozenset({"posterior", "samples"})

    noise_arrives: bool
    """Whether the compressor's samples already contain the noise of the dynamics."""
    batch: int
    settings: LangevinSettings

    def train(self, state: State, client: int, data: Examples, rng: np.random.Generator) -> tuple[Vector, Measurements]:
        share = self.settings.precision / self.clients  # each client takes 1/N of the prior
        gradient, loss = self.learner.potential_gradient(state.vector("weights"), data, self.batch, share, rng)
        return gradient, self.loss_seen(loss)

    def aggregate(self, state: State, received: Received) -> Outcome:
        gamma = self.settings.gamma
        weights = state.vector("weights") - gamma * (received.total * (self.clients / received.weight))
        if not self.noise_arrives:
            rng = np.random.default_rng([self.seed, 0x5E4E, state.round + 1])
            weights += math.sqrt(2 * gamma) * rng.standard_normal(weights.size)
        shared = {**received.side(), "weights": weights.astype(np.float32)}
        return Outcome(state.after(shared), received.statistics())

    def evaluate(self, state: State, data: Examples) -> tuple[dict[str, float], State]:
        """Evaluate the posterior average so far; before the end of burn-in, the current sample."""
        table = self.learner.predict(self.parameters(state), data)
        current = self.learner.metrics(table, data)
        private = dict(state.private)
        if state.round > self.settings.burn_in:
            count = int(state.private.get("samples", np.array(0))) + 1
            total = table if count == 1 else state.kept("posterior") + table
            private |= {"posterior": total, "samples": np.array(count)}
            table = total / count
        metrics = self.learner.metrics(table, data)
        if "accuracy" in current:
            metrics["accuracy_of_sample"] = current["accuracy"]
        return metrics, replace(state, private=private)


_MESSAGE_FACTOR = (
    100.0  # 10 as for other methods, squared: messages grow with the square of the data (docs/reliability.md)
)


def _entry(name: str, title: str, reference: str, scheme: str | None = None) -> MethodEntry:
    """Return the method that sends gradients through `scheme`.

    Without a scheme, a message is a sample around the gradient, and the noise of the sample drives the dynamics.
    """

    def make(setup: Setup) -> Method:
        config, own = setup.config, setup.settings(LangevinSettings)
        own = own.model_copy(update={"gamma": own.gamma or default_gamma(setup.examples)})
        if setup.robust is not None:
            raise InvalidArgument(f"{name} does not take robust: a trimmed sum of gradients is no step of its dynamics")
        if scheme is not None:
            return Langevin(*setup.parts(scheme), False, config.batch, own)
        std = noise_std(own.gamma, config.clients, config.participants)
        compressor = KLMSGaussian(std, setup.settings(BlockSettings).coder(setup.layout.d, setup.threads))
        return Langevin(*setup.parts(compressor), True, config.batch, own)

    settings = (LangevinSettings, RobustSettings, SCHEMES[scheme].settings if scheme else BlockSettings)
    own = {"gamma": 0.0} if scheme else {"gamma": 0.0, "message_factor": _MESSAGE_FACTOR}
    return MethodEntry(name, title, reference, "sgld", settings, make, own, _UNUSED)


SGLD = _entry("sgld", "Federated Langevin dynamics, float32 gradients", "El Mekkaoui et al., UAI 2021", "float32")
QLSD = _entry("qlsd", "Langevin dynamics with QSGD gradients", "Vono et al., AISTATS 2022", "qsgd")
SGLD_KLMS = _entry("sgld-klms", "Langevin dynamics whose noise is the sample", "Isik et al., AISTATS 2024")
