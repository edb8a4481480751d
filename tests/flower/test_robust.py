"""`Compressed(..., robust=0.3)`: hostile clients are outvoted, whatever they send, weigh or leave out."""

from functools import cache

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from klms.flower import Compressed, compress
from tests.flower.in_process import InProcessGrid
from tests.support.hostile import ALLOWED, ATTACKS, CLIENTS, INPUTS, LABELS, accuracy, trained


def app(count: int, attack: str, *mods) -> ClientApp:
    made = ClientApp(mods=list(mods))

    @made.train()
    def train(message, context):
        node = context.node_id
        received = message.content["arrays"]["weight"].numpy()
        update = trained(received, node - 1) - received
        examples = 400
        if node <= count:
            update = ATTACKS[attack](update)
            examples = 10**7 if "examples" in attack else 400
        arrays = ArrayRecord({"weight": Array((received + update).astype(np.float32))})
        metrics = MetricRecord({"num-examples": examples})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return made


def run(clients, attack="", count=0, unmodded=(), **settings):
    """Train with these clients, of whom the first are hostile, and some lack the mod."""
    coded, plain = app(count, attack, compress(seed=1)), app(count, attack)
    grid = InProcessGrid(
        lambda message, context: (plain if context.node_id in unmodded else coded)(message, context), CLIENTS
    )
    grid.offline = {node for node in grid.contexts if node - 1 not in clients}
    strategy = Compressed(FedAvg(fraction_evaluate=0.0), bits_per_parameter=2, seed=3, **settings)
    start = ArrayRecord({"weight": Array(np.zeros((INPUTS, LABELS), dtype=np.float32))})
    return strategy.start(grid, start, num_rounds=12, timeout=5)


def end(result) -> float:
    return accuracy(result.arrays["weight"].numpy())


@cache
def without(count: int) -> float:
    """Accuracy of the good clients alone."""
    return end(run(range(count, CLIENTS)))


@pytest.mark.parametrize("count", ALLOWED)
@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_clients_cost_little_with_robust_and_much_without(attack, count, caplog):
    with caplog.at_level("INFO"):
        guarded = run(range(CLIENTS), attack, count, robust=count / CLIENTS)
    assert end(guarded) > without(count) - ALLOWED[count]
    assert "updates are clipped to the median norm" in caplog.text
    assert all(metrics["klms-clipped"] == 5 for metrics in guarded.train_metrics_clientapp.values())
    caplog.clear()
    with caplog.at_level("INFO"):
        plain = run(range(CLIENTS), attack, count)
    assert end(plain) < end(guarded) - (0.03 if attack.startswith("a million") else 0.3)
    assert "clipped" not in caplog.text


def test_hostile_clients_without_the_mod_are_outvoted_too():
    guarded = run(range(CLIENTS), "reversed and ten times as long", 3, unmodded=(1, 2), robust=0.3)
    assert all(metrics["klms-uncompressed"] == 2 for metrics in guarded.train_metrics_clientapp.values())
    assert end(guarded) > without(3) - ALLOWED[3]
