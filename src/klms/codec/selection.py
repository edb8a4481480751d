"""Selection of the candidate to send, given the scores `L_k = log q(y_k) / p(y_k)` of a block.

The rule concerns the encoder alone; the decoder accepts any index. The paper's rule, `sample`, draws `k` with
probability `pi(k) = exp(L_k) / sum exp(L_l)` (Algorithm Fixed-KLMS). `greedy` takes the candidate with the highest
score. `matched` draws with probability proportional to `exp(beta L_k)`, with the `beta` at which the expected score
equals its mean under `q`: this undoes the shrinkage that `sample` causes if there are too few candidates.
A new rule also needs a branch in `paths.py` and in `klms.theory.survived_fraction`.
"""

from typing import Literal, NamedTuple, get_args

import numpy as np

from klms.numerics.elementary import subtract_largest, take_exponentials, total
from klms.numerics.jit import Float64, UInt16, inlined, kernel

Selection = Literal["sample", "greedy", "matched"]
SELECTIONS: tuple[Selection, ...] = get_args(Selection)

_MAX_BETA = 64.0
_BETA_STEPS = 40
_BETA_TOLERANCE = 1e-3  # nats of expected score, far below the noise of one draw


class Batch(NamedTuple):
    """Consecutive blocks that are scored together. The selection of their candidates may overwrite the scores."""

    first: int  # the first block
    scores: Float64  # a row per block
    wanted: Float64  # expected score of each block under `q`
    nats: Float64  # KL of each block


def select(batch: Batch, rule: Selection, uniforms: Float64, indices: UInt16) -> None:
    """Select an index for each block of the batch, and write it to `indices`.

    `uniforms` holds one random number per block.
    """
    if rule == "greedy":
        indices[batch.first : batch.first + len(batch.scores)] = batch.scores.argmax(axis=1)
        return
    if rule == "matched":
        _temper(batch.scores, batch.wanted)
    _draw(batch, uniforms, indices)


@kernel
def _temper(scores: Float64, wanted: Float64) -> None:
    """Multiply the scores of each block by its `beta`."""
    for m in range(scores.shape[0]):
        top = subtract_largest(scores[m])
        scores[m] *= matching_beta(scores[m], wanted[m] - top)


@kernel
def _draw(batch: Batch, uniforms: Float64, indices: UInt16) -> None:
    weights = np.empty(batch.scores.shape[1])
    for m in range(batch.scores.shape[0]):
        subtract_largest(batch.scores[m])
        take_exponentials(batch.scores[m], 1.0, weights)
        indices[batch.first + m] = draw(weights, uniforms[batch.first + m] * total(weights))


@inlined
def draw(weights: Float64, limit: float) -> int:
    """Return the index at which the running sum of the weights exceeds `limit`."""
    running = 0.0
    for k in range(weights.size - 1):
        running += weights[k]
        if running > limit:
            return k
    return weights.size - 1


@kernel
def matching_beta(scores: Float64, wanted: float) -> float:
    """Solve for the `beta` at which the expected score under `softmax(beta * scores)` is `wanted`.

    The largest score must be 0.
    """
    weights = np.empty(scores.size)
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
    """Take a step, given the mean and variance of the score at `search.beta`; the variance is the mean's derivative."""
    beta, low, high = search
    if mean < wanted:
        low = beta
    else:
        high = beta
    step = beta + (wanted - mean) / variance if variance > 0.0 else high
    beta = step if low < step < high else 0.5 * (low + high)
    return BetaSearch(beta, low, high)
