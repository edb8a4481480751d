"""How the server's optimizer answers to noise in the mean update, as its steps show.

The step of most optimizers is `s_t = p u_t + b s_{t-1}`, with the last step as momentum and a gain `p` for every
coordinate: 1 for FedAvg and FedAvgM, and about the inverse size of the coordinate's updates for FedAdam. `b` follows by
least squares, and `p` by division. Noise stays in the steps by its momentum, so that it arrives in the model with
`p / (1 - b)`. Where `p` depends on the size of the updates, least squares gives less than the mean over coordinates,
because they weight large updates more.
"""

import math
from itertools import pairwise

import numpy as np

from klms.exchange.quality import Gain
from klms.numerics.jit import Float64

_LARGEST_MOMENTUM = 0.95
_NEGLIGIBLE = 1e-12


def gain_of(update: Float64, step: Float64, before: Float64 | None, bounds: list[int]) -> Gain:
    """Return the gain of a step for this decoded mean update, after the step `before`.

    `bounds` are where arrays begin and end: their gains may differ by far.

    >>> u, s = np.random.default_rng(0).standard_normal((2, 1000))
    >>> gain_of(u, u, None, [0, 1000]) == Gain()
    True
    >>> gain = gain_of(u, u + 0.5 * s, s, [0, 1000])
    >>> round(gain.total, 6), round(gain.immediate, 6), abs(round(gain.adaptive, 6))
    (4.0, 1.0, 0.0)
    """
    energy = float(update @ update)
    if energy <= _NEGLIGIBLE:
        return Gain()
    slope, momentum = _fitted(update, step, before)
    own = step if before is None or momentum == 0 else step - momentum * before
    sizes = np.abs(update)
    ratios = np.divide(np.abs(own), sizes, out=np.zeros_like(sizes), where=sizes > 0)
    squares = weights = 0.0
    for start, end in pairwise(bounds):
        if end > start:
            # A code spends its bits so that noise has about the size of the array's entries, not of their squares.
            weight = math.sqrt((end - start) * float(np.square(update[start:end]).sum()))
            squares += weight * float(np.median(ratios[start:end])) ** 2
            weights += weight
    immediate = squares / weights
    if immediate <= _NEGLIGIBLE * slope**2:
        return Gain()
    adaptive = min(1.0, max(0.0, 1 - slope / math.sqrt(immediate)))
    return Gain(immediate / (1 - momentum) ** 2, immediate, adaptive)


def _fitted(update: Float64, step: Float64, before: Float64 | None) -> tuple[float, float]:
    """Return the factors of the update and of the step before that come closest to the step."""
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
