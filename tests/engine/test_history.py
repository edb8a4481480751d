"""The last global update as side information of a run: who holds it, and that it costs no byte."""

from functools import cache

import numpy as np
import pytest

from klms.compressors.history import HISTORY, history
from klms.engine import local
from klms.engine.downlink import Downlink
from klms.engine.federation import Federation
from klms.methods.state import State
from klms.runs.settings import resolve

torch = pytest.importorskip("torch")

MODES = ("auto", "coded")


def points(seed, count=40):
    x = np.random.default_rng(seed).standard_normal((count, 20)).astype(np.float32)
    return x, (x[:, 0] - 2 * x[:, 1] > 0).astype(np.int64)


@cache
def run_of(rounds=5, **given):
    common = {"clients": 4, "rounds": rounds, "epochs": 1, "batch": 20, "seed": 5, "rate": 1.0}
    config = resolve("klms", profile="small", given={**common, "data": "own", "model": "own", **given})
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 400), torch.nn.ReLU(), torch.nn.Linear(400, 2))
    clients = [points(client) for client in range(config.clients)]
    federation = Federation.of(config, model, clients, points(99, 100))
    return config, federation, list(local.run(federation, config, federation.method.init(), 1))


def figures(results):
    return [result.record.model_dump(exclude={"seconds"}) for result in results]


@pytest.mark.parametrize("mode", MODES)
def test_after_a_round_all_hold_the_classes_of_the_last_step(mode):
    config, federation, results = run_of(downlink=mode)
    downlink, states = Downlink(federation.method, config), [federation.method.init(), *(r.state for r in results)]
    held, before = None, None
    for number, state in enumerate(states):
        opened = downlink.open(state)
        held = downlink.follow(opened.sender.message(max(0, number - 1)), held)
        weights = held.vector("weights")
        assert (HISTORY in held.shared) == (number > 0)
        if before is not None:
            agree = held.shared[HISTORY] == history(weights - before)[HISTORY]
            assert agree.mean() > 0.99  # all but those that rounding to the weight moves to another class
            np.testing.assert_array_equal(held.shared[HISTORY], opened.state.shared[HISTORY])
        before = weights


@pytest.mark.parametrize("mode", MODES)
def test_workers_and_resuming_change_nothing(mode, workers):
    config, federation, results = run_of(downlink=mode)
    assert figures(results) == figures(local.run(federation, config, federation.method.init(), workers))
    stored = State.from_bytes(results[2].state.to_bytes(private=True))
    assert figures(local.run(federation, config, stored, 1)) == figures(results)[3:]


@pytest.mark.parametrize("mode", MODES)
def test_the_downlink_costs_no_more_for_it(mode):
    with_it, without = (
        sum(result.record.downlink_bytes for result in run_of(downlink=mode, order=order)[2])
        for order in ("auto", "never")
    )
    assert with_it < 1.02 * without  # the messages that are relayed differ in size by a little


@pytest.mark.parametrize("given", [{"per_round": 2}, {"downlink": "snapshot"}, {"rate": 8.0}, {"order": "never"}])
def test_where_some_would_need_it_in_a_snapshot_there_is_none(given):
    assert HISTORY not in run_of(rounds=2, **given)[2][-1].state.shared
