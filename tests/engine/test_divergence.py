"""A run that diverges names its likely causes."""

import math

import pytest
import torch
from torch.nn import functional

import klms
from klms.errors import TrainingDiverged
from tests.support.models import WithDropout, three_classes


def test_a_run_that_diverges_says_so():
    calls = 0

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return functional.cross_entropy(output, y) * (1.0 if calls <= 2 else math.nan)

    clients = [three_classes(30, seed) for seed in range(2)]
    settings = {"rate": 0.1, "downlink": "coded", "down_rate": 0.1, "batch": 30, "epochs": 1}
    with pytest.raises(TrainingDiverged, match=r"lower the learning rate; or raise the bits per parameter: at 0.1,"):
        klms.federate(WithDropout(), clients, method="trellis", rounds=2, loss=loss, **settings)
