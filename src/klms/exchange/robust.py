"""Averages that a few hostile clients cannot move far: what `robust=` does, in every engine.

Every update is first clipped to the median of all norms, so that size alone gains nothing. Then every coordinate is
averaged without the largest and the smallest values, a share of the clients at each end (Yin et al., ICML 2018). What
clients claim to weigh does not count. Both are needed: clipping leaves a reversed update its direction, and trimming
alone leaves many large values at the same end.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from klms.compressors.trellis import product
from klms.container import Array
from klms.errors import InvalidArgument
from klms.exchange.model import Model
from klms.numerics.jit import Float32, Float64

log = logging.getLogger("klms")
_AT_ONCE = 1 << 20  # entries of all clients together, so that no second copy of all updates is made


class Average(NamedTuple):
    """A robust average of vectors, and how many of them were clipped."""

    vector: Float64
    clipped: int


@dataclass(frozen=True)
class Robust:
    """The share of clients that may be hostile."""

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise InvalidArgument(f"robust is the share of clients that may be hostile, below 0.5; got {self.share}")

    def average(self, updates: Sequence[Float32]) -> Average:
        """Return the average of the updates of all clients. It is the same on every machine."""
        factors = self._factors([math.sqrt(product(update, update)) for update in updates])
        vector = np.empty(updates[0].size)
        self._fill(vector, np.zeros_like(updates[0]), updates, factors)
        return Average(vector, _clipped(factors))

    def average_arrays(self, model: Model, trained: Sequence[Mapping[str, Array]]) -> tuple[dict[str, Array], int]:
        """Return the model moved by the average update, and how many updates were clipped.

        Integers are those of the median client.
        """
        factors = self._factors([model.distance(arrays) for arrays in trained])
        averaged: dict[str, Array] = {}
        for name, first in trained[0].items():
            rows = [arrays[name].reshape(-1) for arrays in trained]
            if first.dtype.kind == "f":
                out = np.empty(first.size, dtype=first.dtype)
                self._fill(out, model.arrays[name].reshape(-1), rows, factors)
            else:
                out = np.sort(rows, axis=0)[len(rows) // 2]
            averaged[name] = out.reshape(first.shape)
        return averaged, _clipped(factors)

    def _trimmed(self, clients: int) -> int:
        """Return how many values are left out at each end."""
        return min(math.ceil(self.share * clients), (clients - 1) // 2)

    def _factors(self, norms: Sequence[float]) -> Float64:
        """Return what every update is multiplied by, so that none is longer than the median one."""
        lengths = np.asarray(norms, dtype=np.float64)
        median = float(np.median(lengths))
        factors = np.minimum(1.0, np.divide(median, lengths, out=np.ones(lengths.size), where=lengths > 0))
        log.info(
            "klms: %d of %d updates are clipped to the median norm, %.3g; the largest was %.3g. Of each coordinate, "
            "%d values are left out at either end",
            _clipped(factors),
            lengths.size,
            median,
            lengths.max(),
            self._trimmed(lengths.size),
        )
        return factors

    def _fill(self, out: Array, base: Array, rows: Sequence[Array], factors: Float64) -> None:
        """Set `out` to the base moved by the average of the differences to it."""
        trimmed = self._trimmed(len(rows))
        length = max(1, _AT_ONCE // len(rows))
        for start in range(0, out.size, length):
            part = slice(start, start + length)
            origin = base[part].astype(np.float64)
            updates = np.stack([factor * (row[part] - origin) for factor, row in zip(factors, rows, strict=True)])
            updates.sort(axis=0)
            out[part] = origin + updates[trimmed : len(rows) - trimmed].mean(axis=0)


def _clipped(factors: Float64) -> int:
    return int(np.count_nonzero(factors < 1))
