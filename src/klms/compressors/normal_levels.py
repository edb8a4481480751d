"""The levels of the best quantiser of a standard normal variable (Lloyd, 1957; Max, 1960)."""

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from klms.numerics.quantiles import LEVELS, normal_quantiles

_STEPS = 600


@cache
def normal_levels(bits: int) -> npt.NDArray[np.float32]:
    """Return `2^bits` levels in increasing order.

    >>> normal_levels(2).round(4).tolist() == np.array([-1.5104, -0.4528, 0.4528, 1.5104], dtype=np.float32).tolist()
    True
    """
    count = 1 << bits
    # Panter and Dite's levels for many bits, which Lloyd's iteration then improves: each level becomes the mean of
    # its cell. Symmetry is kept by working on the positive half.
    middles = (2 * np.arange(count // 2, count) + 1) * (LEVELS // 2 // count)
    levels = math.sqrt(3.0) * normal_quantiles()[middles].astype(np.float64)
    for _ in range(_STEPS):
        edges = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [np.inf]])
        mass = np.diff([math.erf(edge / math.sqrt(2)) / 2 for edge in edges])
        levels = -np.diff(np.exp(-(edges**2) / 2)) / math.sqrt(2 * math.pi) / mass
    return np.concatenate([-levels[::-1], levels]).astype(np.float32)
