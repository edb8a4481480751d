"""Updates that were trained from an earlier state: decoded against that state, and weighted by their age."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from klms.engine.local import LocalClients, update
from klms.engine.rounds import rounds
from klms.errors import SideInformationMismatch
from klms.methods.base import Upload
from klms.methods.dense import Dense
from tests.support.downlink_runs import config_of, federation_of


@dataclass
class LateClients(LocalClients):
    """Clients of which one is always a round late, and answers in time as well if it is `eager`."""

    late: int = 0
    eager: bool = False
    waiting: list[Upload] = field(default_factory=list)

    def run(self, broadcasts, wanted):
        for upload in [*super().run(broadcasts, wanted)]:
            based_on = replace(upload, based_on=broadcasts.state)
            if upload.client == self.late:
                yield from self.waiting
                self.waiting = [based_on]
            if upload.client != self.late or self.eager:
                yield based_on


def late_clients(federation, **given):
    return LateClients(lambda state, wanted: (update(federation, state, *one) for one in wanted), **given)


@pytest.mark.parametrize("downlink", ["auto", "snapshot"])
def test_a_late_update_counts_with_its_weight(monkeypatch, downlink):
    ages = []

    def weight(self, staleness):
        ages.append(staleness)
        return 2 / (1 + staleness)

    monkeypatch.setattr(Dense, "weight", weight)
    config = config_of("qsgd", clients=2, per_round=0, rounds=3, downlink=downlink, loss_factor=0.0)
    federation = federation_of(config)
    clients = late_clients(federation)
    first, second, third = rounds(federation, config, federation.method.init(), clients)
    assert [first.record.clients, second.record.clients, third.record.clients] == [(1,), (0, 1), (0, 1)]
    assert set(ages) == {0, 1}

    method = federation.method
    stale = method.decode(method.init(), 0, update(federation, method.init(), 0).message).vector
    fresh = method.decode(first.state, 1, update(federation, first.state, 1).message).vector
    moved = second.state.vector("weights") - first.state.vector("weights")
    np.testing.assert_allclose(moved, method.server_lr * (0.5 * stale + fresh) / 1.5, atol=1e-6)


@pytest.mark.parametrize("downlink", ["auto", "coded"])
def test_a_late_client_is_known_to_hold_the_state_that_it_trained_from(downlink):
    config = config_of("trellis", clients=2, per_round=0, rounds=4, downlink=downlink, loss_factor=0.0, rate=1.0)
    federation = federation_of(config)
    held = [one.state.held for one in rounds(federation, config, federation.method.init(), late_clients(federation))]
    numbers = [one.by("1") for one in held]
    assert numbers == [0, 1, 2, 3]
    assert [one.by("0") for one in held] == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("qsgd-klms", {}),
        ("fedpm-klms", {"reset": 2}),
        ("trellis", {"rate_schedule": "2:1,1:1,0.5"}),
        ("trellis", {"quality": 1.0, "downlink": "coded"}),
    ],
)
def test_a_late_update_is_decoded_with_the_side_information_and_the_rate_of_its_round(monkeypatch, method, given):
    config = config_of(method, clients=3, per_round=0, rounds=5, loss_factor=0.0, **given)
    federation = federation_of(config)
    found = {}

    def decode(self, state, client, message):
        decoded = original(self, state, client, message)
        if client == 0:
            found.setdefault(message, []).append(decoded.vector)
        return decoded

    original = type(federation.method).decode
    monkeypatch.setattr(type(federation.method), "decode", decode)
    results = list(rounds(federation, config, federation.method.init(), late_clients(federation, eager=True)))
    assert [result.record.clients for result in results] == [(0, 1, 2), *[(0, 0, 1, 2)] * 4]
    twice = [vectors for vectors in found.values() if len(vectors) > 1]
    assert len(twice) >= 4
    for vectors in twice:
        for vector in vectors[1:]:
            np.testing.assert_array_equal(vector, vectors[0])


def test_a_second_message_based_on_the_same_round_is_refused():
    config = config_of("qsgd", clients=2, per_round=0, rounds=2, loss_factor=0.0)
    federation = federation_of(config)

    class Repeating(LateClients):
        def run(self, broadcasts, wanted):
            late = self.waiting
            yield from super().run(broadcasts, wanted)
            yield from late

    clients = Repeating(lambda state, wanted: (update(federation, state, *one) for one in wanted))
    with pytest.raises(SideInformationMismatch, match="client 0 has sent a message"):
        list(rounds(federation, config, federation.method.init(), clients))
