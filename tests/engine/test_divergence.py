"""A run that diverges names its likely causes."""

import math

import pytest
import torch
from torch.nn import functional

import klms
from klms.engine.divergence import explained
from klms.errors import TrainingDiverged
from klms.runs.settings import resolve
from tests.support.models import WithDropout, three_classes

BOTH = "lower the learning rate; or raise the bits per parameter: at "
FEW = {"rate": 0.1, "clients": 2}


@pytest.mark.parametrize(
    ("method", "given", "round_", "message"),
    [
        (
            "trellis",
            FEW | {"downlink": "coded", "down_rate": 0.1},
            2,
            BOTH + "0.1 up and 0.1 down with 2 clients, .* 33 times",
        ),
        ("trellis", FEW, 2, BOTH + "0.1 up with 2 clients, .* 3.4 times"),
        ("eden", {"rate_schedule": "1:1,0.2", "clients": 2}, 2, BOTH + "0.2 up with 2 clients"),
        ("fedavg", {"downlink": "coded", "down_rate": 0.3}, 2, BOTH + "0.3 down with 10 clients"),
        ("trellis", FEW, 1, "rate$"),  # which starts without noise
        ("trellis", {"rate": 0.1, "clients": 20}, 2, "rate$"),
        ("trellis", {"rate": 1.0, "clients": 2}, 2, "rate$"),
        ("fedavg", {}, 2, "rate$"),
    ],
)
def test_noise_is_named_where_it_outweighs_what_clients_learn(method, given, round_, message):
    config = resolve(method, given=given)
    with pytest.raises(TrainingDiverged, match=message), explained(config, round_, 1000):
        raise TrainingDiverged("of a client")


def test_a_run_that_diverges_says_so():
    calls = 0

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return functional.cross_entropy(output, y) * (1.0 if calls <= 2 else math.nan)

    clients = [three_classes(30, seed) for seed in range(2)]
    settings = {"rate": 0.1, "downlink": "coded", "down_rate": 0.1, "batch": 30, "epochs": 1}
    with pytest.raises(TrainingDiverged, match=r"at 0.1 up and 0.1 down with 2 clients"):
        klms.federate(WithDropout(), clients, method="trellis", rounds=2, loss=loss, **settings)
