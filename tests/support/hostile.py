"""Clients of whom some are hostile, and what they do: a linear classifier of points with forty labels."""

from collections.abc import Callable

import numpy as np

INPUTS, LABELS, CLIENTS = 32, 40, 10
_TEACHER = np.random.default_rng(0).standard_normal((INPUTS, LABELS))

Attack = Callable[[np.ndarray], np.ndarray]
ATTACKS: dict[str, Attack] = {
    "reversed and ten times as long": lambda update: -10 * update,
    "a million times as long": lambda update: 1e6 * update,
    "reversed, with ten million examples": lambda update: -update,
}
ALLOWED = {1: 0.01, 3: 0.03}
"""What so many hostile clients of ten may cost in accuracy, against the others alone."""


def points(seed: int, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng([7, seed]).standard_normal((count, INPUTS)).astype(np.float32)
    return x, (x @ _TEACHER).argmax(axis=1)


TEST = points(1000, 4000)


def accuracy(weight: np.ndarray) -> float:
    """Share of the test points that a matrix of inputs and labels has right."""
    x, y = TEST
    return float(((x @ weight).argmax(axis=1) == y).mean())


def trained(weight: np.ndarray, client: int, rate: float = 0.2) -> np.ndarray:
    """An epoch of softmax regression on a client's points."""
    x, y = points(client)
    weight = weight.copy()
    for start in range(0, len(y), 20):
        inputs, labels = x[start : start + 20], y[start : start + 20]
        scores = np.exp(inputs @ weight - (inputs @ weight).max(axis=1, keepdims=True))
        errors = scores / scores.sum(axis=1, keepdims=True)
        errors[np.arange(len(labels)), labels] -= 1
        weight -= rate * inputs.T @ errors / len(labels)
    return weight.astype(np.float32)
