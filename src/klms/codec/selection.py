"""Selection of the candidate to send, given the scores `L_k = log q(y_k) / p(y_k)` of a block.

The rule concerns the encoder alone; the decoder accepts any index. The paper's rule, `sample`, draws `k` with
probability `pi(k) = exp(L_k) / sum exp(L_l)` (Algorithm Fixed-KLMS). `greedy` takes the candidate with the highest
score. `matched` draws with probability proportional to `exp(beta L_k)`, where `beta` is solved such that the expected
score equals its mean under `q`: this undoes the shrinkage of `sample` where there are too few candidates.
A new rule also needs its branch in `trellis.py`, for paths, and in `klms.theory.survived_fraction`.
"""

from typing import Literal, NamedTuple, get_args

from klms.numerics.elementary import largest, take_exponentials, total
from klms.numerics.jit import Float64, UInt16, inlined, kernel

Selection = Literal["sample", "greedy", "matched"]
SELECTIONS: tuple[Selection, ...] = get_args(Selection)
SAMPLE, GREEDY, MATCHED = range(3)

_MAX_BETA = 64.0
_BETA_STEPS = 40
_BETA_TOLERANCE = 1e-3  # nats of expected score, far below the noise of one draw


class Selector(NamedTuple):
    """Selection rule, the sender's private randomness, and the shape of the trellis (see `trellis.py`)."""

    rule: int
    uniforms: Float64  # one per block, then, with memory, one per segment; `greedy` ignores them
    bits: int
    memory: int
    segment: int  # number of blocks that are selected together


class Results(NamedTuple):
    """What the encoding kernels write: the selected index of each block, and the block's KL in nats."""

    indices: UInt16
    nats: Float64


@kernel
def select(scores: Float64, rule: int, uniform: float, wanted: float, weights: Float64) -> int:
    """Return the index to send, given the expected score under `q`; `scores` and `weights` are scratch afterwards."""
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
    return draw(weights, uniform * total(weights))


@kernel
def draw(weights: Float64, limit: float) -> int:
    """Return the index at which the running sum of the weights exceeds `limit`."""
    running = 0.0
    for k in range(weights.size):
        running += weights[k]
        if running > limit:
            return k
    return weights.size - 1


@kernel
def matching_beta(scores: Float64, wanted: float, weights: Float64) -> float:
    """Solve for the `beta` at which `softmax(beta * scores)` has expected score `wanted`; the largest must be 0."""
    search = BetaSearch(1.0, 0.0, _MAX_BETA)
    for _ in range(_BETA_STEPS):
        take_exponentials(scores, search.beta, weights)
        mass = total(weights)
        mean = square = 0.0
        for k in range(scores.size):
            mean += weights[k] * scores[k]
            square += weights[k] * scores[k] * scores[k]
        mean /= mass
        if abs(mean - wanted) < _BETA_TOLERANCE:
            break
        search = improved(search, mean, square / mass - mean * mean, wanted)
    return search.beta


class BetaSearch(NamedTuple):
    """A search for `beta` by Newton's method, safeguarded by a bracket."""

    beta: float
    low: float
    high: float


@inlined
def improved(search: BetaSearch, mean: float, variance: float, wanted: float) -> BetaSearch:
    """Take a step, given the mean and the variance of the score at `search.beta`: the variance is the derivative."""
    beta, low, high = search
    if mean < wanted:
        low = beta
    else:
        high = beta
    step = beta + (wanted - mean) / variance if variance > 0.0 else high
    beta = step if low < step < high else 0.5 * (low + high)
    return BetaSearch(beta, low, high)
