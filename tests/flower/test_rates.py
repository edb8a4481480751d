"""Rates by round, by node and within a budget."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.serverapp.strategy import FedAvg

from klms.errors import InvalidArgument
from klms.exchange.rates import RateRule
from klms.flower import Compressed, compress
from tests.flower.in_process import InProcessGrid
from tests.flower.test_any_app import app_of, arrays_of, record

SHAPES = {"w": (200, 150), "head.w": (150, 20), "b": (150,)}
SIZE = 33_150


def run(rounds=3, nodes=4, **settings):
    """Return the bits per parameter that each node sent, round by round, and the result."""
    sent = {}

    def note(node, reply):
        if reply.has_content() and "klms" in reply.content:
            sent.setdefault(node, []).append(8 * len(reply.content["klms"]["reply"]) / SIZE)
        return reply

    grid = InProcessGrid(app_of(arrays_of(SHAPES, seed=1), compress()), nodes, tamper=note)
    strategy = Compressed(FedAvg(fraction_evaluate=0.0), seed=1, **settings)
    result = strategy.start(grid, record(arrays_of(SHAPES)), num_rounds=rounds, timeout=5)
    return sent, result


def test_every_node_may_have_a_rate_of_its_own():
    bits, result = run(up=lambda round, client: 2 if client == "1" else 0.5, down=1)
    assert all(1.9 < sent <= 2.01 for sent in bits[1])
    assert all(0.45 < sent <= 0.505 for node in (2, 3, 4) for sent in bits[node])
    assert all(metrics["klms-ok"] == 4 for metrics in result.train_metrics_clientapp.values())


class Halving(RateRule):
    def up(self, now):
        return 2 / 2**now.round if now.client == "1" else 0.25

    def down(self, now):
        return 1.0


def test_a_rule_of_the_users_own_reaches_the_exchange():
    bits, _ = run(rates=Halving())
    assert bits[1] == pytest.approx([1, 0.5, 0.25], rel=0.05)
    assert bits[2] == pytest.approx([0.25] * 3, rel=0.05)


def test_arrays_with_rates_of_their_own_arrive_more_exactly():
    def off(**settings):
        _, result = run(rounds=1, bits_per_parameter=1, down=32, **settings)
        expected = {name: a + 0.3 * (arrays_of(SHAPES, seed=1)[name] - a) for name, a in arrays_of(SHAPES).items()}
        return {name: float(np.abs(result.arrays[name].numpy() - expected[name]).mean()) for name in SHAPES}, result

    usual, _ = off()
    own, result = off(array_bits={"head.*": 6})
    assert own["head.w"] < 0.1 * usual["head.w"]
    assert 0.9 < result.train_metrics_clientapp[1]["klms-bits-per-parameter"] <= 1.02


@pytest.mark.parametrize("nodes", [2, 6])
def test_a_budget_covers_all_clients_and_both_directions(nodes):
    _, result = run(rounds=4, nodes=nodes, budget=30_000)
    for number, metrics in result.train_metrics_clientapp.items():
        if number > 1:  # the first model has bits of its own
            assert 25_000 < metrics["klms-uplink-bytes"] + metrics["klms-downlink-bytes"] <= 30_300
        assert metrics["klms-uplink-bytes"] <= 15_300  # messages may be off by a percent or two
    _, result = run(rounds=2, nodes=nodes, budget=lambda round: 10_000 * round, down=32)
    assert 8_000 < result.train_metrics_clientapp[1]["klms-uplink-bytes"] <= 10_000
    assert 16_000 < result.train_metrics_clientapp[2]["klms-uplink-bytes"] <= 20_000


@pytest.mark.parametrize("budget", [0, -5, float("nan")])
def test_a_budget_is_above_zero(budget):
    with pytest.raises(InvalidArgument, match="bytes above 0"):
        run(budget=budget)
