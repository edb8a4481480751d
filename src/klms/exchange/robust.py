"""Averages that a few hostile clients cannot move far: what `robust=` does, in every engine.

Every update is first clipped to the median of all norms, so that size alone gains nothing. Then every coordinate is
averaged without the largest and the smallest values, a share of the clients at each end (Yin et al., ICML 2018). What
clients claim to weigh does not count. Both are needed: clipping leaves a reversed update its direction, and trimming
alone leaves many large values at the same end.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from klms.container import Array
from klms.errors import InvalidArgument
from klms.exchange.model import Model
from klms.numerics.jit import Float64

_AT_ONCE = 1 << 20  # entries of all clients together, so that no second copy of all updates is made


@dataclass(frozen=True)
class Robust:
    """The share of clients that may be hostile."""

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise InvalidArgument(f"robust is the share of clients that may be hostile, below 0.5; got {self.share}")

    def trimmed(self, clients: int) -> int:
        """Return how many values are left out at each end."""
        return min(math.ceil(self.share * clients), (clients - 1) // 2)


def clip_factors(norms: Sequence[float]) -> Float64:
    """Return what every update is multiplied by, so that none is longer than the median one."""
    lengths = np.asarray(norms, dtype=np.float64)
    median = float(np.median(lengths)) if lengths.size else 0.0
    return np.minimum(1.0, np.divide(median, lengths, out=np.ones(lengths.size), where=lengths > 0))


def trimmed_mean(stacked: Array, trimmed: int) -> Array:
    """Return the mean over clients, the first axis, without so many of the largest and of the smallest values."""
    ordered = np.sort(stacked, axis=0)
    kept: Array = ordered[trimmed : ordered.shape[0] - trimmed].mean(axis=0)
    return kept


def robust_arrays(model: Model, trained: Sequence[Mapping[str, Array]], robust: Robust) -> tuple[dict[str, Array], int]:
    """Return the robust average of what clients trained, and how many updates were clipped.

    Integers are those of the median client.
    """
    factors = clip_factors([model.distance(arrays) for arrays in trained])
    trimmed = robust.trimmed(len(trained))
    averaged: dict[str, Array] = {}
    for name, first in trained[0].items():
        base = model.arrays[name]
        if first.dtype.kind != "f":
            averaged[name] = np.sort([arrays[name] for arrays in trained], axis=0)[len(trained) // 2]
            continue
        out = np.empty(first.size, dtype=first.dtype)
        flat, rows = base.reshape(-1), [arrays[name].reshape(-1) for arrays in trained]
        length = max(1, _AT_ONCE // len(trained))
        for start in range(0, first.size, length):
            part = slice(start, start + length)
            origin = flat[part].astype(np.float64)
            updates = np.stack([f * (row[part] - origin) for f, row in zip(factors, rows, strict=True)])
            out[part] = origin + trimmed_mean(updates, trimmed)
        averaged[name] = out.reshape(first.shape)
    return averaged, int(np.count_nonzero(factors < 1))
