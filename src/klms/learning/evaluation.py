"""How good a model is: accuracy, negative log-likelihood, calibration."""

import numpy as np
import numpy.typing as npt
import torch

from klms.learning.network import Network, Vector
from klms.learning.training import PADDING, Examples

Probabilities = npt.NDArray[np.float64]
_BATCH = 500


def predict(network: Network, parameters: Vector, data: Examples) -> Probabilities:
    """The probability of every class for every example (every place that counts, for texts)."""
    point = network.tensor(parameters)
    parts = []
    with torch.no_grad():
        for start in range(0, len(data), _BATCH):
            scores = network(point, network.tensor(data.x[start : start + _BATCH]))
            parts.append(torch.softmax(scores.double(), dim=1).cpu().numpy())
    table = np.concatenate(parts)
    if table.ndim > 2:
        table = table.transpose(0, 2, 1)[data.y != PADDING]
    nothing = ~np.isfinite(table).all(axis=1, keepdims=True)  # a model that has diverged says nothing
    return np.where(nothing, 1 / table.shape[1], table)


def metrics(probabilities: Probabilities, data: Examples) -> dict[str, float]:
    """Accuracy, negative log-likelihood in nats, and expected calibration error over 15 bins."""
    labels = data.y[data.y != PADDING] if data.y.ndim > 1 else data.y
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    likely = probabilities[np.arange(labels.size), labels]
    bins = np.minimum((confidence * 15).astype(np.int64), 14)
    gaps = np.bincount(bins, weights=right - confidence, minlength=15)
    return {
        "accuracy": float(right.mean()),
        "nll": float(-np.log(np.maximum(likely, 1e-12)).mean()),
        "ece": float(np.abs(gaps).sum() / labels.size),
    }
