"""The standard normal as a table of 65536 equally likely values: `z = Q[u]` for a 16-bit word `u`.

The table is part of the format: encoder and decoder must hold the same float32 numbers. It is computed from the
standard library's inverse normal CDF and checked against a pinned digest, so a platform whose mathematics library
rounds differently fails here, loudly, and not in someone's model.
"""

import hashlib
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

LEVELS = 1 << 16
DIGEST = "8babbcaf96568f10165a1eab530c0e5c92d04de96761b6dbb3dadfa94baba37f"


@cache
def normal_quantiles() -> npt.NDArray[np.float32]:
    """`Q`: increasing, symmetric (`Q[65535 - u] = -Q[u]`), of unit variance."""
    inverse = NormalDist().inv_cdf
    upper = np.array([inverse((u + 0.5) / LEVELS) for u in range(LEVELS // 2, LEVELS)])
    upper /= np.sqrt(np.mean(upper * upper))
    table: npt.NDArray[np.float32] = np.concatenate([-upper[::-1], upper]).astype("<f4")
    digest = hashlib.sha256(table.tobytes()).hexdigest()
    if digest != DIGEST:
        raise RuntimeError(
            f"this platform computes another normal quantile table (SHA-256 {digest}, expected {DIGEST}); "
            "Gaussian messages would not decode as they do elsewhere. Please report the platform."
        )
    table.setflags(write=False)
    return table
