"""Layers that stay with each client: a method of two hooks, with any scheme."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from klms.compressors.schemes import SCHEMES
from klms.methods import dense
from klms.methods.dense import Dense
from klms.methods.table import METHODS
from tests.support.downlink_runs import config_of, federation_of, trained


@dataclass(frozen=True)
class FedPer(Dense):
    """FedAvg but for the last layer, which every client keeps."""

    @property
    def own(self) -> slice:
        *_, weight, bias = self.layout.parts
        return slice(weight.start, bias.stop)

    def personal(self, state, keeps):
        if "own" not in keeps:
            return state
        weights = state.vector("weights").copy()
        weights[self.own] = keeps["own"]
        return replace(state, shared={**state.shared, "weights": weights})

    def to_send(self, start, update, keeps):
        keeps["own"] = start.vector("weights")[self.own] + update[self.own]
        update[self.own] = 0
        return update


@pytest.mark.parametrize(("scheme", "given"), [("trellis", {"rate": 1.0}), ("topk", {})])
def test_a_personal_layer_is_trained_and_never_sent(monkeypatch, scheme, given):
    monkeypatch.setitem(METHODS, "fedper", dense.entry(SCHEMES[scheme], "fedper", FedPer))
    config = config_of("fedper", clients=3, per_round=0, rounds=4, loss_factor=0.0, **given)
    federation = federation_of(config)
    method = federation.method
    state = trained(config, federation)[-1].state
    first = method.init().vector("weights")[method.own]
    np.testing.assert_allclose(state.vector("weights")[method.own], first, atol=1e-6)
    kept = [state.clients[client]["own"] for client in range(3)]
    assert all(np.abs(one - first).max() > 1e-3 for one in kept)
    assert np.abs(kept[0] - kept[1]).max() > 1e-3
