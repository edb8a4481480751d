"""What a client does with its data: batches, and the three kinds of local training."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from klms.learning.network import Network, Vector

PADDING = 0  # of texts: predicting it counts for nothing


@dataclass(frozen=True)
class Examples:
    """A client's data."""

    x: npt.NDArray[np.generic]
    y: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Schedule:
    """How to go through the data and step."""

    epochs: int
    batch: int
    lr: float
    optimizer: str

    def make(self, parameters: Tensor) -> torch.optim.Optimizer:
        """The optimizer, new for every client and round."""
        if self.optimizer == "adam":
            return torch.optim.Adam([parameters], lr=self.lr)
        if self.optimizer == "sgd":
            return torch.optim.SGD([parameters], lr=self.lr)
        if self.optimizer == "momentum":
            return torch.optim.SGD([parameters], lr=self.lr, momentum=0.9)
        raise ValueError(f"optimizer must be sgd, momentum or adam; got {self.optimizer!r}")


def loss_of(scores: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy; over all words but padding, for texts."""
    return functional.cross_entropy(scores, y, ignore_index=PADDING if y.ndim > 1 else -100)


def batches(n: int, epochs: int, size: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of shuffled batches; a last batch of one is dropped, since norms cannot work with it."""
    for _ in range(epochs):
        order = rng.permutation(n)
        for start in range(0, n, size):
            chosen = order[start : start + size]
            if chosen.size > 1 or n == 1:
                yield chosen


def train(network: Network, start: Vector, data: Examples, schedule: Schedule, rng: np.random.Generator) -> Vector:
    """Plain local training: the parameters after it."""
    parameters = network.tensor(start).requires_grad_()
    optimizer = schedule.make(parameters)
    x, y = network.tensor(data.x), network.tensor(data.y)
    for index in batches(len(data), schedule.epochs, schedule.batch, rng):
        optimizer.zero_grad()
        loss_of(network(parameters, x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return parameters.detach().cpu().numpy()


def train_mask(
    network: Network,
    frozen: Vector,
    theta: Vector,
    data: Examples,
    schedule: Schedule,
    rng: np.random.Generator,
    *,
    sampled: bool = True,
) -> Vector:
    """FedPM's local training (Algorithm FedPM): the mask probabilities after it.

    Every step samples a mask `m ~ Bern(sigmoid(s))` and uses `m * w`; the gradient goes straight through the sampling
    to the scores `s`. Not `sampled`, the mask is 1 where the probability is one half or more (FedMask).
    """
    weights = network.tensor(frozen)
    scores = torch.logit(network.tensor(theta)).requires_grad_()
    generator = torch.Generator(device=network.device).manual_seed(int(rng.integers(2**63)))
    optimizer = schedule.make(scores)
    x, y = network.tensor(data.x), network.tensor(data.y)
    for index in batches(len(data), schedule.epochs, schedule.batch, rng):
        optimizer.zero_grad()
        probability = torch.sigmoid(scores)
        if sampled:
            drawn = torch.rand(probability.shape, generator=generator, device=network.device) < probability
        else:
            drawn = probability >= 0.5
        mask = drawn.float() - probability.detach() + probability
        loss_of(network(mask * weights, x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return torch.sigmoid(scores).detach().cpu().numpy()


def potential_gradient(
    network: Network, parameters: Vector, data: Examples, batch: int, precision: float, rng: np.random.Generator
) -> Vector:
    """`H`: an unbiased estimate of the gradient of the client's potential, from one batch.

    The potential is the negative log-likelihood of all of the client's data plus `precision / 2 |theta|^2`, the
    client's share of a Gaussian prior.
    """
    point = network.tensor(parameters).requires_grad_()
    index = rng.choice(len(data), size=min(batch, len(data)), replace=False)
    scores = network(point, network.tensor(data.x[index]))
    (gradient,) = torch.autograd.grad(loss_of(scores, network.tensor(data.y[index])), point)
    total = len(data) * gradient + precision * point.detach()
    return total.cpu().numpy()
