"""`robust` in the engine of our methods: hostile clients are outvoted, and without it nothing is changed."""

from functools import cache

import pytest

pytest.importorskip("torch")

import torch

from klms.methods.dense import Dense
from klms.runs.federate import federate
from tests.support.hostile import ALLOWED, ATTACKS, CLIENTS, INPUTS, LABELS, TEST, points


def run(clients, **settings):
    torch.manual_seed(0)
    model = torch.nn.Linear(INPUTS, LABELS, bias=False)
    own = {"method": "trellis", "rate": 2.0, "rounds": 12, "epochs": 1, "batch": 20, "lr": 0.2, "optimizer": "sgd"}
    data = [points(client) for client in clients]
    return federate(model, data, test=TEST, evaluate_every=12, seed=3, **own, **settings)


@cache
def without(count: int) -> float:
    """Accuracy of the good clients alone."""
    return run(range(count, CLIENTS)).accuracy


@pytest.mark.parametrize("count", ALLOWED)
@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_clients_cost_little_with_robust_and_much_without(attack, count, monkeypatch, caplog):
    alone = without(count)
    train = Dense.train

    def hostile(self, state, client, data, rng):
        update, measurements = train(self, state, client, data, rng)
        return (ATTACKS[attack](update) if client < count else update).astype("float32"), measurements

    monkeypatch.setattr(Dense, "train", hostile)
    with caplog.at_level("INFO", "klms"):
        guarded = run(range(CLIENTS), robust=0.3)
    assert guarded.accuracy > alone - ALLOWED[count]
    assert "updates are clipped to the median norm" in caplog.text
    assert all(record.clipped == 5 for record in guarded.ledger)
    caplog.clear()
    with caplog.at_level("INFO", "klms"):
        plain = run(range(CLIENTS))
    assert plain.accuracy < guarded.accuracy - (0.3 if "ten times" in attack else 0.005)
    assert "clipped" not in caplog.text
    assert all(record.clipped is None for record in plain.ledger)
