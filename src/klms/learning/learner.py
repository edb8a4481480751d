"""Everything for which methods need torch: three kinds of local training, and evaluation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from klms.compressors.layout import Layout
from klms.errors import InvalidArgument
from klms.learning.examples import Array, Examples, Schedule, each, mixed_batches
from klms.learning.network import Network, TensorInputs, Vector, are_scores, scores_of

Penalty = Callable[[Tensor, Tensor], Tensor | float]
"""A term that a method adds to the local loss, as a function of the parameters and of their initial values."""
_BATCH = 500
_BINS = 15


def use_one_thread() -> None:
    """Let torch use one thread per process: on small models two are slower than one, and clients run in parallel."""
    torch.set_num_threads(1)


def classification_metrics(probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return accuracy, negative log-likelihood in nats, and expected calibration error over 15 bins."""
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    likely = probabilities[np.arange(labels.size), labels]
    bins = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=_BINS)
    return {
        "accuracy": float(right.mean()),
        "nll": float(-np.log(np.maximum(likely, 1e-12)).mean()),
        "ece": float(np.abs(gaps).sum() / labels.size),
    }


class Learned(NamedTuple):
    """Result of local training."""

    vector: Vector
    loss: float
    """Mean loss of the examples during training, without the penalty."""


@dataclass(frozen=True)
class Learner:
    """Training and evaluation of a network, with parameters as NumPy vectors."""

    network: Network

    @property
    def layout(self) -> Layout:
        return self.network.layout

    def train(
        self, start: Vector, data: Examples, schedule: Schedule, rng: np.random.Generator, penalty: Penalty
    ) -> Learned:
        """Return the parameters after local training."""
        parameters = self.network.tensor(start).requires_grad_()
        loss = self._descend(parameters, lambda p: p, data, schedule, rng, penalty)
        return Learned(parameters.detach().cpu().numpy(), loss)

    def train_mask(
        self,
        frozen: Vector,
        theta: Vector,
        data: Examples,
        schedule: Schedule,
        rng: np.random.Generator,
        penalty: Penalty,
        *,
        sampled: bool = True,
    ) -> Learned:
        """Return the mask probabilities after FedPM's local training (Algorithm FedPM).

        Every step samples a mask `m ~ Bern(sigmoid(s))` and uses `m * w`; the gradient goes straight through the
        sampling to the scores `s`. Unless `sampled`, the mask is 1 where the probability is at least 1/2 (FedMask).
        """
        weights = self.network.tensor(frozen)
        scores = torch.logit(self.network.tensor(theta)).requires_grad_()
        generator = torch.Generator(device=self.network.device).manual_seed(int(rng.integers(2**63)))

        def masked(scores: Tensor) -> Tensor:
            probability = torch.sigmoid(scores)
            if sampled:
                drawn = torch.rand(scores.shape, generator=generator, device=scores.device) < probability
            else:
                drawn = probability >= 0.5
            return (drawn.float() - probability.detach() + probability) * weights

        loss = self._descend(scores, masked, data, schedule, rng, penalty)
        return Learned(torch.sigmoid(scores).detach().cpu().numpy(), loss)

    def potential_gradient(
        self, parameters: Vector, data: Examples, batch: int, precision: float, rng: np.random.Generator
    ) -> Learned:
        """Return `H`, an unbiased estimate of the gradient of the client's potential from one batch.

        The potential is the negative log-likelihood of all of the client's data plus `precision / 2 |theta|^2`, the
        client's share of a Gaussian prior.
        """
        point = self.network.tensor(parameters).requires_grad_()
        index = rng.choice(len(data), size=min(batch, len(data)), replace=False)
        part = data.rows(index)
        with _mode(self.network, rng):
            loss = self._loss(point, self.network.inputs(part.x), self.network.tensor(part.y))
        (gradient,) = torch.autograd.grad(loss, point)
        return Learned((len(data) * gradient + precision * point.detach()).cpu().numpy(), float(loss.detach()))

    def predict(self, parameters: Vector, data: Examples) -> npt.NDArray[np.float64]:
        """Return the class probabilities, one row per label: per example or, for text, per token that is not padding.

        If labels are not classes, or the model has no scores for them, return for every example the loss of its batch.
        """
        labels = data.y[self._counts(data.y)]
        point = self.network.tensor(parameters)
        parts = []
        with torch.no_grad(), _mode(self.network, None):
            for batch in data.batches(_BATCH):
                y = self.network.tensor(batch.y)
                output = self.network(point, self.network.inputs(batch.x), y)
                scores = scores_of(output, len(batch))
                if scores is not None and are_scores(scores, y) and self.network.are_classes(labels, scores.shape[1]):
                    parts.append(self._probabilities(scores, batch.y))
                else:
                    parts.append(np.full(len(batch), float(self.network.loss(output, y))))
        return np.concatenate(parts)

    def _probabilities(self, scores: Tensor, labels: Array) -> npt.NDArray[np.float64]:
        """Return the class probabilities, one row per label that is not padding.

        Rows that are not finite become uniform.
        """
        table = torch.softmax(scores.double(), dim=1).cpu().numpy()
        table = np.moveaxis(table, 1, -1)[self._counts(labels)]
        diverged = ~np.isfinite(table).all(axis=1, keepdims=True)
        return np.where(diverged, 1 / table.shape[1], table)

    def metrics(self, predictions: npt.NDArray[np.float64], data: Examples) -> dict[str, float]:
        """Return accuracy, likelihood and calibration if `predictions` are probabilities; otherwise, the mean loss."""
        if predictions.ndim == 1:
            return {"loss": float(predictions.mean())}
        labels = data.y[self._counts(data.y)]
        return classification_metrics(predictions, labels.astype(np.int64))

    def _counts(self, labels: Array) -> npt.NDArray[np.bool_]:
        """Return which labels are not padding."""
        return np.asarray(labels != self.network.padding, dtype=np.bool_)

    def module_with(self, parameters: Vector, clients: Sequence[Examples]) -> nn.Module:
        """Return a module with these parameters.

        The running statistics of its normalisation layers come from the clients' examples.
        """
        return self.network.module_with(parameters, mixed_batches(clients, _BATCH))

    def _descend(
        self,
        variable: Tensor,
        parameters: Callable[[Tensor], Tensor],
        data: Examples,
        schedule: Schedule,
        rng: np.random.Generator,
        penalty: Penalty,
    ) -> float:
        """Minimise the loss and the penalty over `variable`, in place; return the mean loss during training."""
        if schedule.optimizer == "adam":
            optimizer: torch.optim.Optimizer = torch.optim.Adam([variable], lr=schedule.lr)
        else:
            momentum = 0.9 if schedule.optimizer == "momentum" else 0.0
            optimizer = torch.optim.SGD([variable], lr=schedule.lr, momentum=momentum)
        start = variable.detach().clone()
        x, y = self.network.inputs(data.x), self.network.tensor(data.y)
        seen = 0
        total = torch.zeros((), device=self.network.device)
        with _mode(self.network, rng):
            for index in schedule.batches(len(data), rng):
                optimizer.zero_grad()
                loss = self._loss(parameters(variable), each(x, itemgetter(index)), y[index])
                (loss + penalty(variable, start)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += index.size * loss.detach()
                seen += index.size
        return float(total) / seen

    def _loss(self, parameters: Tensor, x: TensorInputs, y: Tensor) -> Tensor:
        return self.network.loss(self.network(parameters, x, y), y)


@contextmanager
def _mode(network: Network, rng: np.random.Generator | None) -> Iterator[None]:
    """Put the module into training mode, with dropout seeded by `rng`; without a generator, into evaluation mode."""
    network.set_mode(training=rng is not None)
    before = {name: buffer.clone() for name, buffer in network.module.named_buffers()}
    devices = [network.device] if network.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        if rng is not None:
            torch.manual_seed(int(rng.spawn(1)[0].integers(2**63)))
        yield
    for name, buffer in network.module.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise InvalidArgument(
                f"the model changes its buffer {name} while it runs; only parameters are sent, so that state would be "
                "lost: make it a parameter or remove it"
            )
