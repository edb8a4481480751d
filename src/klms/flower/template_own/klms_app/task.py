"""Your model and your data: replace these three functions with your own.

The server calls `model` and `test_data`; a client calls `model` and `client_data`. Data is a pair `(x, y)` of arrays or
tensors, or a torch `Dataset`. The loss is cross-entropy unless `client_app` and `server_app` get another `loss=`.
"""

import torch
from torch import Tensor, nn


def model() -> nn.Module:
    """Return the network; training starts from its parameters."""
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))


def client_data(client: int) -> tuple[Tensor, Tensor]:
    """Return the examples of one client; here, points on either side of a plane."""
    return _points(count=200, seed=client)


def test_data() -> tuple[Tensor, Tensor]:
    """Return the examples that the server evaluates the model on."""
    return _points(count=500, seed=1_000_000)


def _points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, :10].sum(dim=1) > x[:, 10:].sum(dim=1)).long()
