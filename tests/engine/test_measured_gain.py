"""A method with an optimizer at the server holds a quality: what it makes of noise is measured in its steps."""

from dataclasses import dataclass

import numpy as np
import pytest

from klms.compressors.schemes import SCHEMES
from klms.errors import InvalidArgument
from klms.exchange.quality import TARGET
from klms.methods import dense
from klms.methods.base import Outcome
from klms.methods.dense import Dense
from klms.methods.state import State
from klms.methods.table import METHODS
from tests.support.downlink_runs import arrays, config_of, federation_of, figures, trained

HELD = {"quality": 1.0, "optimizer": "sgd", "lr": 0.05, "batch": 100, "clients": 6, "per_round": 0}
ROUNDS = 14
SETTLED = 8  # rounds after which momentum has built up
KEPT = 0.9


@dataclass(frozen=True)
class FedAdam(Dense):
    """Adam at the server (Reddi et al., ICLR 2021)."""

    def aggregate(self, state, received):
        mean = received.take_mean()
        first = KEPT * state.private.get("first", 0.0) + (1 - KEPT) * mean
        second = 0.99 * state.private.get("second", 0.0) + 0.01 * mean**2
        kept = {"first": first.astype(np.float32), "second": second.astype(np.float32)}
        weights = state.vector("weights") + self.server_lr * first / size_of(second)
        after = state.after({**received.side(), "weights": weights.astype(np.float32)}, kept)
        return Outcome(after, received.statistics())


def size_of(second):
    return np.sqrt(second) + 1e-3


@pytest.fixture(autouse=True)
def fedadam(monkeypatch):
    entry = dense.entry(SCHEMES["trellis"], "fedadam", FedAdam, overrides={"server_lr": 0.003})
    monkeypatch.setitem(METHODS, "fedadam", entry)


@pytest.mark.parametrize("downlink", ["auto", "coded"])
def test_adam_at_the_server_holds_a_quality_and_goes_on_after_a_stop(downlink):
    config = config_of("fedadam", **HELD, rounds=ROUNDS, downlink=downlink)
    federation = federation_of(config, hidden=1000, count=400)
    results = trained(config, federation)
    for result in results[SETTLED:]:
        assert TARGET / 2 < result.record.harm < 2 * TARGET
        gains = (1 - KEPT) * federation.method.server_lr / size_of(result.state.private["second"])
        immediate = float(np.median(gains)) ** 2
        found = result.state.learned.known.gain
        assert immediate / 2 < found.immediate < 2 * immediate  # the square of server_lr is a thousandth of it
        total = immediate / (1 - KEPT) ** 2
        assert total / 2 < found.total < 2 * total

    stored = State.from_bytes(results[9].state.to_bytes())
    assert stored.last_step.any()
    resumed = trained(config, federation, stored)
    assert figures(resumed) == figures(results[10:])
    assert arrays(resumed[-1].state) == arrays(results[-1].state)
    assert resumed[-1].state.to_bytes() == results[-1].state.to_bytes()


def test_plain_averaging_keeps_no_step():
    config = config_of("trellis", **HELD, rounds=2)
    (*_, last) = trained(config, federation_of(config))
    assert last.state.last_step.size == 0


def test_a_method_whose_mean_is_unknown_cannot_hold_a_quality(monkeypatch):
    def aggregate(self, state, received):
        return Outcome(state.after(state.shared), received.statistics())

    monkeypatch.setattr(FedAdam, "aggregate", aggregate)
    config = config_of("fedadam", **HELD, rounds=1)
    with pytest.raises(InvalidArgument, match=r"FedAdam.aggregate must call received.take_mean\(\)"):
        trained(config, federation_of(config))
