"""Training while 30 % of the clients are bad in every round: it ends, and ends where the good ones alone would."""

import numpy as np
import pytest

from klms.engine.federation import Federation
from klms.runs.settings import resolve
from tests.support.faults import FAULTS, HARMLESS, LOST, REFUSED, FaultyClients, nobody, plan, trained
from tests.support.models import WithDropout, three_classes

SETTINGS = {
    "fedavg": {"lr": 0.1, "robust": 0.3},
    "trellis": {"lr": 0.1, "rate": 1.0, "robust": 0.3},
    "fedpm-klms": {"lr": 0.1, "bits": 6, "target": 6.0},
}


def federation_of(method: str, clients: int, rounds: int):
    given = {"clients": clients, "rounds": rounds, "epochs": 2, "batch": 10, "evaluate_every": 1, **SETTINGS[method]}
    config = resolve(method, given=given)
    x, y = three_classes(40 * clients)
    tests = three_classes(1000, seed=1)
    parts = [(x[n::clients], y[n::clients]) for n in range(clients)]
    return Federation.of(config, WithDropout(), parts, tests), config


@pytest.mark.parametrize(("clients", "rounds"), [(10, 8), pytest.param(20, 40, marks=pytest.mark.soak)])
@pytest.mark.parametrize("method", SETTINGS)
def test_bad_clients_cost_less_than_a_point(method, clients, rounds, capsys):
    federation, config = federation_of(method, clients, rounds)
    faults = plan(rounds, clients)
    assert set(faults.values()) == set(FAULTS)
    with_faults = FaultyClients(nobody, federation=federation, faults=faults)
    attacked, _ = trained(federation, config, with_faults)
    good, _ = trained(federation, config, FaultyClients(nobody, federation=federation, faults=faults, only_good=True))
    assert len(attacked) == len(good) == rounds
    # Means over the last rounds, which are less noisy than one round.
    last = [float(np.mean(run[-max(3, rounds // 4) :])) for run in (attacked, good)]
    with capsys.disabled():
        print(f"\n{method}: {last[0]:.4f} with 30 % bad clients, {last[1]:.4f} with the good ones alone", end="")
    assert last[0] > last[1] - 0.01
    outcomes = with_faults.outcomes
    for fault in FAULTS:
        happened = sum(1 for kind in faults.values() if kind == fault)
        found = outcomes[fault]
        if fault in LOST:
            assert found["missing"] == happened
        elif fault in HARMLESS:
            assert found["counted"] == happened
        elif fault in REFUSED:
            assert found["refused"] == found["CorruptMessage"] + found["SideInformationMismatch"] == happened
        else:
            assert found["counted"] + found["refused"] == happened
    assert outcomes["duplicate"]["SideInformationMismatch"] == outcomes["duplicate"]["counted"]
