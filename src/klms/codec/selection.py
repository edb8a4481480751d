"""Which candidate to send, given the scores `L_k = log q(y_k) / p(y_k)` of a block.

The rule is the encoder's business alone; the decoder takes any index. The paper's rule, `sample`, draws `k` with
probability `pi(k) = exp(L_k) / sum exp(L_l)` (Algorithm Fixed-KLMS). `greedy` takes the best candidate. `matched`
draws from `exp(beta L_k)` with `beta` solved such that the expected score is the one that a true sample of `q` has,
its KL: it undoes the shrinkage of `sample` where there are too few candidates.
"""

import numpy as np
import numpy.typing as npt

from klms.codec._jit import kernel
from klms.codec.elementary import largest, take_exponentials, total

SELECTIONS = ("sample", "greedy", "matched")
SAMPLE, GREEDY, MATCHED = range(3)

_MAX_BETA = 64.0
_BETA_STEPS = 40
_BETA_TOLERANCE = 1e-3  # nats of expected score: far below the noise of one draw

Float64 = npt.NDArray[np.float64]


@kernel
def select(scores: Float64, rule: int, uniform: float, wanted: float, weights: Float64) -> int:
    """The index to send.

    `uniform` is private randomness and `wanted` the expected score under `q`. `scores` are shifted, `weights` is
    scratch.
    """
    top = largest(scores)
    if rule == GREEDY:
        best = 0
        while scores[best] < top:
            best += 1
        return best
    for k in range(scores.size):
        scores[k] -= top
    beta = matching_beta(scores, wanted - top, weights) if rule == MATCHED else 1.0
    take_exponentials(scores, beta, weights)
    return _draw(weights, uniform * total(weights))


@kernel
def _draw(weights: Float64, limit: float) -> int:
    """The index at which the running sum of the weights passes `limit`."""
    running = 0.0
    for k in range(weights.size):
        running += weights[k]
        if running > limit:
            return k
    return weights.size - 1


@kernel
def matching_beta(scores: Float64, wanted: float, weights: Float64) -> float:
    """`beta` with expected score `wanted` under `softmax(beta scores)`, where the largest score is 0.

    The expectation grows with `beta`, at the rate of the score's variance: Newton's steps, kept inside a bracket.
    """
    low = 0.0
    high = _MAX_BETA
    beta = 1.0
    for _ in range(_BETA_STEPS):
        take_exponentials(scores, beta, weights)
        mass = total(weights)
        mean = 0.0
        square = 0.0
        for k in range(scores.size):
            mean += weights[k] * scores[k]
            square += weights[k] * scores[k] * scores[k]
        mean /= mass
        variance = square / mass - mean * mean
        if abs(mean - wanted) < _BETA_TOLERANCE:
            break
        if mean < wanted:
            low = beta
        else:
            high = beta
        step = beta + (wanted - mean) / variance if variance > 0.0 else high
        beta = step if low < step < high else 0.5 * (low + high)
    return beta
