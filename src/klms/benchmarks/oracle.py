"""The paper's own algorithm, written plainly: K i.i.d. candidates per block from NumPy, in a loop over blocks.

The compiled codec is measured against this implementation. It writes no bytes: it returns the indices that a sender
would send, and the candidates that a receiver would generate from these indices.
"""

import numpy as np
import numpy.typing as npt

from klms.codec import Bernoulli, Blocks, Categorical, Distribution, Gaussian
from klms.errors import InvalidArgument

Float64 = npt.NDArray[np.float64]


def encode(
    q: Distribution, p: Distribution, blocks: Blocks, *, bits: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], Float64]:
    """Run Algorithm Fixed-KLMS; return the chosen index of every block, and the vector of all chosen candidates."""
    indices = np.empty(len(blocks), dtype=np.int64)
    chosen = np.empty(blocks.d)
    for m, (start, end) in enumerate(zip(blocks.bounds[:-1], blocks.bounds[1:], strict=True)):
        candidates, scores = draw_and_score(q, p, slice(start, end), 1 << bits, rng)
        weights = np.exp(scores - scores.max())
        indices[m] = rng.choice(weights.size, p=weights / weights.sum())
        chosen[start:end] = candidates[indices[m]]
    return indices, chosen


def draw_and_score(
    q: Distribution, p: Distribution, block: slice, count: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.generic], Float64]:
    """Return `count` candidates of a block, and `log q/p` of each."""
    if isinstance(q, Bernoulli) and isinstance(p, Bernoulli):
        one_q, one_p = (np.clip(law.probability[block].astype(np.float64), 1e-6, 1 - 1e-6) for law in (q, p))
        ones = rng.random((count, one_p.size)) < one_p
        return ones, np.where(ones, np.log(one_q / one_p), np.log((1 - one_q) / (1 - one_p))).sum(axis=1)
    if isinstance(q, Categorical) and isinstance(p, Categorical):
        table_q, table_p = (np.maximum(law.probabilities[:, block].astype(np.float64), 1e-6) for law in (q, p))
        cumulative = np.cumsum(table_p / table_p.sum(axis=0), axis=0)
        u = rng.random((count, table_p.shape[1]))
        symbols = sum((u >= row).astype(np.int64) for row in cumulative[:-1])
        ratios = np.log(table_q / table_p)
        return p.values[symbols], ratios[symbols, np.arange(ratios.shape[1])].sum(axis=1)
    if isinstance(q, Gaussian) and isinstance(p, Gaussian):
        z = rng.standard_normal((count, p.mean[block].size))
        samples = p.mean[block] + p.std[block] * z
        z_q = (samples - q.mean[block]) / q.std[block]
        return samples, (0.5 * z**2 - 0.5 * z_q**2 - np.log(q.std[block] / p.std[block])).sum(axis=1)
    raise InvalidArgument(f"q and p must be of one family, got {q.family} and {p.family}")
