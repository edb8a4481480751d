"""The response of the server's optimizer to noise in the mean update, estimated from its steps.

The step of most optimizers is `s_t = p u_t + b s_{t-1}`, with the last step as momentum and a gain `p` for every
coordinate: 1 for FedAvg and FedAvgM, and about the inverse size of the coordinate's updates for FedAdam. `b` follows by
least squares, and `p` by division. Momentum keeps noise in later steps, so noise enters the model with the factor
`p / (1 - b)`. Where `p` depends on the size of the updates, the least-squares gain is smaller than the mean gain over
coordinates, because least squares weights large updates more.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from klms.compressors.base import Vector
from klms.exchange.quality import Gain
from klms.numerics.jit import Float64

_LARGEST_MOMENTUM = 0.95
_NEGLIGIBLE = 1e-12
_SAMPLE = 1 << 18  # coordinates that a gain is estimated from


def gain_of(update: Vector, step: Vector, before: Vector | None, bounds: Sequence[int]) -> Gain:
    """Return the gain of a step for this decoded mean update, after the step `before`.

    `bounds` are the positions at which arrays begin and end: the gains of arrays may differ greatly.

    >>> u, s = np.random.default_rng(0).standard_normal((2, 1000))
    >>> gain_of(u, u, None, [0, 1000]) == Gain()
    True
    >>> gain = gain_of(u, u + 0.5 * s, s, [0, 1000])
    >>> round(gain.total, 6), round(gain.immediate, 6), abs(round(gain.adaptive, 6))
    (4.0, 1.0, 0.0)
    """
    places, bounds = _sample(bounds)
    mean = update[places].astype(np.float64)
    own = step[places].astype(np.float64)
    last = None if before is None or before.size != step.size else before[places].astype(np.float64)
    if not mean.any():
        return Gain()
    slope, momentum = _fitted(mean, own, last)
    if last is not None:
        own -= momentum * last
    sizes = np.abs(mean)
    ratios = np.divide(np.abs(own), sizes, out=np.zeros_like(sizes), where=sizes > 0)
    squares = weights = 0.0
    for start, end in pairwise(bounds):
        if end > start:
            # A code spends its bits so that the energy of noise is proportional to the size of an array's entries, not
            # to their squares.
            weight = math.sqrt((end - start) * float(np.square(mean[start:end]).sum()))
            squares += weight * float(np.median(ratios[start:end])) ** 2
            weights += weight
    immediate = squares / weights
    if immediate <= _NEGLIGIBLE * slope**2:
        return Gain()
    adaptive = min(1.0, max(0.0, 1 - slope / math.sqrt(immediate)))
    return Gain(immediate / (1 - momentum) ** 2, immediate, adaptive)


def _sample(bounds: Sequence[int]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return the positions of some coordinates of every array, and where each array begins and ends among them."""
    stride = max(1, bounds[-1] // _SAMPLE)
    places = [np.arange(start, end, stride) for start, end in pairwise(bounds)]
    return np.concatenate(places), [0, *np.cumsum([own.size for own in places]).tolist()]


def _fitted(update: Float64, step: Float64, before: Float64 | None) -> tuple[float, float]:
    """Return the factors of the update and of the previous step that fit the step by least squares."""
    alone = float(update @ step) / float(update @ update)
    if before is None or not before.any():
        return alone, 0.0
    products = np.array([[update @ update, update @ before], [update @ before, before @ before]])
    if np.linalg.det(products) <= _NEGLIGIBLE * products[0, 0] * products[1, 1]:
        return alone, 0.0
    slope, momentum = np.linalg.solve(products, np.array([update @ step, before @ step]))
    if abs(momentum) < 1e-9:
        momentum = 0.0
    return float(slope), float(min(_LARGEST_MOMENTUM, max(0.0, momentum)))
