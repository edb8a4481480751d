"""Averages that a few hostile clients cannot move far: what `robust=` does, in every engine.

Every update is first clipped to the median of all norms, so that size alone gains nothing. The trimmed mean, which
leaves out a share of the clients at each end of every coordinate (Yin et al., ICML 2018), is a centre that hostile
clients cannot move far. They do move it a little, because honest values are left out at the other end. Therefore the
trimmed mean is not the result. Instead, the updates farthest from the trimmed mean, as many as there may be hostile
clients, are left out entirely, and the others are averaged. Weights that clients claim are ignored.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from klms.compressors.trellis import product
from klms.container import Array
from klms.errors import InvalidArgument
from klms.exchange.model import Model
from klms.numerics.jit import Float32, Float64

log = logging.getLogger("klms")
_AT_ONCE = 1 << 20  # entries of all clients handled at a time, so that no second copy of all updates is made


class Average(NamedTuple):
    """A robust average of vectors, and the number of clipped vectors."""

    vector: Float64
    clipped: int


@dataclass(frozen=True)
class Robust:
    """Robust averaging, given the share of clients that may be hostile."""

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise InvalidArgument(f"robust is the share of clients that may be hostile, below 0.5; got {self.share}")

    def average(self, updates: Sequence[Float32]) -> Average:
        """Return the average of the updates of all clients. The result is the same on every machine."""
        factors = self._factors([math.sqrt(product(update, update)) for update in updates])
        origin = np.zeros_like(updates[0])
        weights = self._weights(factors, [(origin, updates)])
        vector = np.empty(updates[0].size)
        _fill(vector, origin, updates, weights)
        return Average(vector, _clipped(factors))

    def average_arrays(self, model: Model, trained: Sequence[Mapping[str, Array]]) -> tuple[dict[str, Array], int]:
        """Return the model moved by the average update, and the number of clipped updates.

        Integers become the median over the clients.
        """
        factors = self._factors([model.distance(arrays) for arrays in trained])
        rows = {name: [arrays[name].reshape(-1) for arrays in trained] for name in trained[0]}
        floating = [name for name, array in trained[0].items() if array.dtype.kind == "f"]
        weights = self._weights(factors, [(model.arrays[name].reshape(-1), rows[name]) for name in floating])
        averaged: dict[str, Array] = {}
        for name, first in trained[0].items():
            if name in floating:
                out = np.empty(first.size, dtype=first.dtype)
                _fill(out, model.arrays[name].reshape(-1), rows[name], weights)
            else:
                out = np.sort(rows[name], axis=0)[len(trained) // 2]
            averaged[name] = out.reshape(first.shape)
        return averaged, _clipped(factors)

    def _left_out(self, clients: int) -> int:
        """Return the number of clients that may be hostile."""
        return min(math.ceil(self.share * clients), (clients - 1) // 2)

    def _factors(self, norms: Sequence[float]) -> Float64:
        """Return the factors that clip the updates to the median norm."""
        lengths = np.asarray(norms, dtype=np.float64)
        median = float(np.median(lengths))
        factors = np.minimum(1.0, np.divide(median, lengths, out=np.ones(lengths.size), where=lengths > 0))
        text = "klms: %d of %d updates are clipped to the median norm, %.3g; the largest was %.3g, and %d are left out"
        log.info(text, _clipped(factors), lengths.size, median, lengths.max(), self._left_out(lengths.size))
        return factors

    def _weights(self, factors: Float64, parts: Sequence[tuple[Array, Sequence[Array]]]) -> Float64:
        """Return the weights of the updates in the average: proportional to their factors, or 0 far from the centre.

        Each of `parts` is a base and one row per client; updates are the differences of the rows from the base.
        """
        count = len(factors)
        out = self._left_out(count)
        distances = np.zeros(count)
        for base, rows in parts:
            for _, updates in _pieces(base, rows, factors):
                centre = np.sort(updates, axis=0)[out : count - out].mean(axis=0)
                distances += np.square(updates - centre).sum(axis=1)
        weights = factors / (count - out)
        weights[np.argsort(distances, kind="stable")[count - out :]] = 0
        return weights


def _pieces(base: Array, rows: Sequence[Array], factors: Float64) -> Iterator[tuple[slice, Float64]]:
    """Yield pieces of all differences from the base, multiplied by the factors."""
    length = max(1, _AT_ONCE // len(rows))
    for start in range(0, base.size, length):
        piece = slice(start, start + length)
        origin = base[piece].astype(np.float64)
        yield piece, np.stack([factor * (row[piece] - origin) for factor, row in zip(factors, rows, strict=True)])


def _fill(out: Array, base: Array, rows: Sequence[Array], weights: Float64) -> None:
    """Set `out` to the base plus the weighted sum of the differences from the base."""
    for piece, updates in _pieces(base, rows, weights):
        out[piece] = base[piece] + updates.sum(axis=0)


def _clipped(factors: Float64) -> int:
    return int(np.count_nonzero(factors < 1))
