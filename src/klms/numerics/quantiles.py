"""The standard normal distribution as a table of 65536 equally likely values: `z = Q[u]` for a 16-bit word `u`.

The table is part of the format: encoder and decoder must hold the same float32 numbers. It is computed with the
standard library's inverse normal CDF and checked against a pinned digest, so that a platform whose mathematics library
rounds differently fails here instead of silently decoding other values.
"""

import hashlib
from functools import cache
from statistics import NormalDist

import numpy as np

from klms.numerics.checks import frozen
from klms.numerics.jit import Float32

LEVELS = 1 << 16
DIGEST = "8babbcaf96568f10165a1eab530c0e5c92d04de96761b6dbb3dadfa94baba37f"


@cache
def normal_quantiles() -> Float32:
    """Return the table `Q`: increasing, symmetric (`Q[65535 - u] = -Q[u]`) and of unit variance."""
    inverse = NormalDist().inv_cdf
    upper = np.array([inverse((u + 0.5) / LEVELS) for u in range(LEVELS // 2, LEVELS)])
    upper /= np.sqrt(np.mean(upper * upper))
    table: Float32 = np.concatenate([-upper[::-1], upper]).astype("<f4")
    digest = hashlib.sha256(table.tobytes()).hexdigest()
    if digest != DIGEST:
        raise RuntimeError(
            f"this platform computes a different normal quantile table (SHA-256 {digest}, expected {DIGEST}), so its "
            "Gaussian messages would decode differently elsewhere. Please report the platform."
        )
    return frozen(table)
