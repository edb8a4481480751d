"""Updates that were trained from an earlier state: decoded with the key of their round, and weighted by their age."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from klms.engine.local import LocalClients, update
from klms.engine.rounds import rounds
from klms.methods.base import Upload
from klms.methods.dense import Dense
from tests.support.downlink_runs import config_of, federation_of


@dataclass
class LateClients(LocalClients):
    """Clients of which one is always a round late."""

    late: int = 0
    waiting: list[Upload] = field(default_factory=list)

    def run(self, broadcasts, wanted):
        for upload in [*super().run(broadcasts, wanted)]:
            based_on = replace(upload, based_on=broadcasts.state.round)
            if upload.client == self.late:
                yield from self.waiting
                self.waiting = [based_on]
            else:
                yield based_on


@pytest.mark.parametrize("downlink", ["auto", "snapshot"])
def test_a_late_update_counts_with_its_weight(monkeypatch, downlink):
    ages = []

    def weight(self, staleness):
        ages.append(staleness)
        return 2 / (1 + staleness)

    monkeypatch.setattr(Dense, "weight", weight)
    config = config_of("qsgd", clients=2, per_round=0, rounds=3, downlink=downlink, loss_factor=0.0)
    federation = federation_of(config)
    clients = LateClients(lambda state, wanted: (update(federation, state, *one) for one in wanted))
    first, second, third = rounds(federation, config, federation.method.init(), clients)
    assert [first.record.clients, second.record.clients, third.record.clients] == [(1,), (0, 1), (0, 1)]
    assert set(ages) == {0, 1}

    method = federation.method
    stale = method.decode(method.init(), 0, update(federation, method.init(), 0).message).vector
    fresh = method.decode(first.state, 1, update(federation, first.state, 1).message).vector
    moved = second.state.vector("weights") - first.state.vector("weights")
    np.testing.assert_allclose(moved, method.server_lr * (0.5 * stale + fresh) / 1.5, atol=1e-6)
