"""Torch modules and data that klms has never seen; worker processes import them from here."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class WithDropout(nn.Module):
    """Two layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 40)
        self.dropout = nn.Dropout(0.2)
        self.second = nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.dropout(torch.relu(self.first(x))))


class WithBatchNorm(nn.Module):
    """Two layers with a normalisation that keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 40)
        self.norm = nn.BatchNorm1d(40)
        self.second = nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


class WithGRU(nn.Module):
    """A recurrent layer over twelve places."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(1, 24, batch_first=True)
        self.output = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.recurrent(x[..., None])[0][:, -1])


class Counting(nn.Module):
    """A layer that counts in a buffer how often it is used, which is state that klms does not send."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x)


class PartlyFrozen(nn.Module):
    """Two layers, of which only the second is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 40).requires_grad_(False)
        self.second = nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Mixed(nn.Module):
    """A frozen layer, a normalisation, a buffer and a trained layer, all of one floating-point type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(12, 40).requires_grad_(False)
        self.norm = nn.BatchNorm1d(40)
        self.register_buffer("shift", torch.ones(40))
        self.second = nn.Linear(40, 3)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.norm(self.first(x)) + self.shift))


class Rotated(nn.Linear):
    """A layer whose outputs are scaled by the magnitude of complex parameters."""

    def __init__(self) -> None:
        super().__init__(12, 3)
        self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.phase.abs()


class Line(nn.Module):
    """A linear function with one output, for regression."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[:, 0]


class Plane(nn.Linear):
    """Scores of three classes, linear in the inputs."""

    def __init__(self) -> None:
        super().__init__(12, 3)


class Pairs(Dataset):
    """A torch data set of pairs of tensors."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.x[index]), int(self.y[index])


def three_classes(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors of 12 entries, a third of which, depending on the class, is about 1 instead of 0."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    x = rng.normal(0, 0.5, (n, 12))
    for place in range(4):
        x[np.arange(n), 4 * y + place] += 1.0
    return x.astype(np.float32), y
