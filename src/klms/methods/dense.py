"""Methods that train the parameters themselves: local training, a compressed difference, a server step.

A client sends `v = w_client - w_global` through any scheme; the server computes `w += server_lr * mean(v_hat)` (the
minus sign that the paper prints is a slip).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import Field

from klms.compressors.base import Compressor, Vector
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.trellis import TrellisSettings
from klms.exchange.quality import FIRST_ROUND
from klms.learning.examples import Examples, Schedule
from klms.methods.base import Measurements, Method, Outcome, Received
from klms.methods.entry import MethodEntry, Setup
from klms.methods.limits import RobustSettings
from klms.methods.state import RATE, Learned, State, rate_array


class DenseSettings(Settings):
    """Settings of methods that send differences."""

    server_lr: float = Field(1.0, gt=0, description="Server learning rate.")
    error_feedback: bool = Field(
        False, description="Clients add what compression lost to their next update; schemes that need it always do."
    )


@dataclass(frozen=True)
class Dense(Method):
    """FedAvg, and methods that differ from it only in the compressor."""

    schedule: Schedule
    server_lr: float
    by_round: Callable[[State], Compressor] | None = None
    """Returns the compressor for the round that follows a state; None if the rate never changes."""
    holds_quality: bool = False
    """Whether the server chooses the rate of every round and tells it to clients in the shared array `rate`."""

    @property
    def scales_mean(self) -> bool:
        """Whether a step is the mean update times `server_lr`; if not, constant quality requires measuring the gain."""
        return type(self).aggregate is Dense.aggregate

    def compressor_after(self, state: State) -> Compressor:
        return self.compressor if self.by_round is None else self.by_round(state)

    def init(self) -> State:
        first = super().init()
        if not self.holds_quality:
            return first
        return replace(first, shared={**first.shared, RATE: rate_array(FIRST_ROUND)}, learned=Learned())

    def train(self, state: State, client: int, data: Examples, rng: np.random.Generator) -> tuple[Vector, Measurements]:
        update, loss = self.local_update(state.vector("weights"), data, rng)
        return update, self.loss_seen(loss)

    def local_update(self, weights: Vector, data: Examples, rng: np.random.Generator) -> tuple[Vector, float]:
        """Return the change of the weights by local training, and the mean loss during training."""
        after, loss = self.learner.train(weights, data, self.schedule, rng, self.penalty)
        return after - weights, loss

    def aggregate(self, state: State, received: Received) -> Outcome:
        step = received.take_mean()
        step *= self.server_lr
        weights = np.add(state.vector("weights"), step, out=step).astype(np.float32)
        return Outcome(state.after({**received.side(), "weights": weights}), received.statistics())


def entry(
    scheme: Scheme[Any],
    name: str | None = None,
    kind: type[Dense] = Dense,
    *,
    settings: tuple[type[Settings], ...] = (),
    overrides: Mapping[str, object] | None = None,
    title: str | None = None,
    reference: str | None = None,
    family: str | None = None,
) -> MethodEntry:
    """Return the method that sends its differences through `scheme`; its name, title and so on default to the scheme's.

    `settings` are groups of settings in addition to those of every `Dense`; each of these settings is a field of `kind`
    with the same name. `overrides` are the method's own defaults.
    """

    def make(setup: Setup) -> Method:
        shared = setup.settings(DenseSettings)
        own: dict[str, Any] = {}
        for group in settings:
            values = setup.settings(group)
            own |= {field: getattr(values, field) for field in group.model_fields}
        return kind(
            *setup.parts(scheme.name),
            setup.schedule,
            shared.server_lr,
            setup.by_round(scheme.name),
            bool(setup.config.quality),
            robust=setup.robust,
            error_feedback=shared.error_feedback or scheme.needs_error_feedback,
            **own,
        )

    groups: tuple[type[Settings], ...] = (DenseSettings, RobustSettings, scheme.settings, *settings)
    defaults: dict[str, object] = {"server_lr": scheme.default_step} if scheme.directions_only else {}
    if scheme.settings is TrellisSettings:
        defaults["quality"] = 1.0
    return MethodEntry(
        name or scheme.name,
        title or scheme.title,
        reference or scheme.reference,
        family or scheme.family,
        groups,
        make,
        defaults | dict(overrides or {}),
    )
