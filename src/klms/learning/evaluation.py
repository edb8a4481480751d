"""How good predictions are: accuracy, negative log-likelihood, calibration."""

import numpy as np
import numpy.typing as npt

Probabilities = npt.NDArray[np.float64]
_BINS = 15


def classification_metrics(probabilities: Probabilities, labels: npt.NDArray[np.int64]) -> dict[str, float]:
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
