"""Paths through the trellis: the selection of indices when candidates depend on earlier indices.

With `memory` bits, block `m` is addressed by the last `memory + bits` bits of the index stream,

    c_m = (c_{m-1} << bits | k_m) mod 2^(memory + bits),   c = 0 before the first block of a segment,

so that a block still costs `bits` bits, but the encoder chooses among all paths through a trellis whose state is the
last `memory` bits. The score of a path is the sum of its candidates' scores. `greedy` takes the best path (Viterbi,
1967). `matched` multiplies the scores by a `beta` per segment, as in `selection.py`, and then does what `sample` does.

`sample` draws a path with a probability exactly proportional to `exp(score)`, by forward filtering and backward
sampling. `alpha(s)` is the total weight of all paths into state `s`. At every block, a predecessor of every state is
drawn in proportion to its share of `alpha`, while the weights are still in memory. One uniform number per block
suffices, because only one of these predecessors is on the path.
"""

from typing import NamedTuple

import numpy as np

from klms.codec.selection import Batch, BetaSearch, Selection, draw, improved
from klms.numerics.elementary import keep_largest, subtract_largest, take_exponentials, take_logarithms, total
from klms.numerics.jit import Float64, UInt16, inlined, kernel

SEGMENT = 256
"""Blocks per segment, part of the format. Segments are coded independently, which bounds the encoder's memory."""
_IMPOSSIBLE = -1e30
_TINY = 1e-290  # stands for a weight of 0 where a logarithm is taken
_MAX_BETA = 8.0  # draws paths close to the best one
_BETA_STEPS = 8
_BETA_TOLERANCE = 0.003  # relative to the wanted score


class Paths(NamedTuple):
    """All paths through a segment so far, and scratch space."""

    bits: int
    memory: int
    log_alpha: Float64  # log of `alpha` up to a constant; for `greedy`, the score of the best path into each state
    alpha: Float64  # weight of all paths into each state
    running: Float64
    limits: Float64
    weights: Float64  # one per candidate
    predecessors: UInt16  # [m, s]: upper `bits` bits of the candidate by which a path enters state `s` at block `m`


def new_paths(bits: int, memory: int) -> Paths:
    """Allocate the arrays for the paths of a segment; all segments can use the same arrays in turn."""
    log_alpha, alpha, running, limits = np.empty((4, 1 << memory))
    weights = np.empty(1 << bits + memory)
    predecessors = np.empty((SEGMENT, 1 << memory), dtype=np.uint16)
    return Paths(bits, memory, log_alpha, alpha, running, limits, weights, predecessors)


def select_paths(batch: Batch, rule: Selection, uniforms: Float64, paths: Paths, indices: UInt16) -> None:
    """Extend the paths by a batch of blocks, and write the indices of the segments that end in it.

    Batches must be passed in order; for `matched`, each must be a whole segment.
    """
    if rule == "matched":
        batch.scores[:] *= _matching_beta(paths, batch)
    _extend(batch, rule == "greedy", uniforms, paths, indices)


@kernel
def _extend(batch: Batch, greedy: bool, uniforms: Float64, paths: Paths, indices: UInt16) -> None:
    for m in range(batch.first, batch.first + batch.scores.shape[0]):
        place = m % SEGMENT
        ends = place == SEGMENT - 1 or m == indices.size - 1
        state = 0
        _weigh(paths, place, batch.scores[m - batch.first], 1.0)
        if greedy:
            keep_largest(paths.weights, paths.log_alpha, paths.predecessors[place])
            if ends:
                state = int(np.argmax(paths.log_alpha))
        else:
            take_exponentials(paths.weights, 1.0, paths.weights)
            _sum_and_draw(paths, paths.predecessors[place], uniforms[m])
            if ends:
                state = draw(paths.alpha, uniforms[indices.size + m // SEGMENT] * total(paths.alpha))
        if ends:
            _trace(paths, state, indices[m - place : m + 1])


@inlined
def _weigh(paths: Paths, place: int, scores: Float64, beta: float) -> None:
    """Set each candidate's log weight: `beta` times its score, plus the log weight of the paths that lead to it.

    A constant is subtracted, so that the largest log weight is 0.
    """
    branches = 1 << paths.bits
    weights = paths.weights
    for s in range(paths.log_alpha.size):
        if place == 0:  # all paths start in state 0
            paths.log_alpha[s] = 0.0 if s == 0 else _IMPOSSIBLE
        before = paths.log_alpha[s]
        for c in range(s * branches, (s + 1) * branches):
            weights[c] = beta * scores[c] + before
    subtract_largest(weights)


@inlined
def _sum_and_draw(paths: Paths, predecessors: UInt16, uniform: float) -> None:
    """Sum the weights of all paths into each state, and draw the state's predecessor in proportion to these weights."""
    alpha, running, limits = paths.alpha, paths.running, paths.limits
    states = alpha.size
    branches = 1 << paths.bits
    for s in range(states):
        alpha[s] = running[s] = 0.0
        predecessors[s] = 0
    for branch in range(branches):
        row = paths.weights[branch * states : (branch + 1) * states]
        for s in range(states):
            alpha[s] += row[s]
    for s in range(states):
        limits[s] = uniform * alpha[s]
    for branch in range(branches - 1):
        row = paths.weights[branch * states : (branch + 1) * states]
        for s in range(states):
            running[s] += row[s]
            predecessors[s] += running[s] <= limits[s]
    for s in range(states):
        paths.log_alpha[s] = alpha[s] if alpha[s] > _TINY else _TINY
    take_logarithms(paths.log_alpha, running)


def _matching_beta(paths: Paths, segment: Batch) -> float:
    """Solve for the `beta` at which the expected score of a path through the segment is the wanted score."""
    wanted = float(np.cumsum(segment.wanted)[-1])  # in order, unlike np.sum
    search = BetaSearch(1.0, 0.0, _MAX_BETA)
    for _ in range(_BETA_STEPS):
        mean, variance = _path_moments(paths, segment.scores, search.beta)
        if abs(mean - wanted) < _BETA_TOLERANCE * abs(wanted):
            break
        search = improved(search, mean, variance, wanted)
    return search.beta


@kernel
def _path_moments(paths: Paths, scores: Float64, beta: float) -> tuple[float, float]:
    """Return the mean and the variance of the score of a path drawn in proportion to `exp(beta score)`."""
    states = paths.alpha.size
    mean = np.zeros(states)
    square = np.zeros(states)
    for place in range(scores.shape[0]):
        own = scores[place]
        _weigh(paths, place, own, beta)
        take_exponentials(paths.weights, 1.0, paths.weights)
        alpha, next_mean, next_square = paths.alpha, paths.running, paths.limits
        for s in range(states):
            alpha[s] = next_mean[s] = next_square[s] = 0.0
        for c in range(own.size):
            before, after = c >> paths.bits, c & (states - 1)
            weight = paths.weights[c]
            alpha[after] += weight
            next_mean[after] += weight * (mean[before] + own[c])
            next_square[after] += weight * (square[before] + own[c] * (2.0 * mean[before] + own[c]))
        for s in range(states):
            paths.log_alpha[s] = alpha[s] if alpha[s] > _TINY else _TINY
            mean[s] = next_mean[s] / paths.log_alpha[s]
            square[s] = next_square[s] / paths.log_alpha[s]
        take_logarithms(paths.log_alpha, paths.running)
    mass = total(paths.alpha)
    average = total(paths.alpha * mean) / mass
    return average, total(paths.alpha * square) / mass - average * average


@inlined
def _trace(paths: Paths, state: int, indices: UInt16) -> None:
    """Trace the path that ends in `state` backwards, and write the index of each block."""
    branches = 1 << paths.bits
    for place in range(indices.size - 1, -1, -1):
        candidate = (int(paths.predecessors[place, state]) << paths.memory) | state
        indices[place] = candidate & (branches - 1)
        state = candidate >> paths.bits


def addresses(indices: UInt16, bits: int, memory: int) -> UInt16:
    """Return the candidate `c_m` of every block, given the index of every block."""
    own = np.zeros((-(-indices.size // SEGMENT), SEGMENT), dtype=np.uint16)  # a row per segment, the last one padded
    own.reshape(-1)[: indices.size] = indices
    out = own.copy()
    for back in range(1, -(-memory // bits) + 1):
        out[:, back:] |= own[:, :-back] << np.uint16(back * bits)  # bits shifted out of the word are masked anyway
    out &= np.uint16((1 << bits + memory) - 1)
    return out.reshape(-1)[: indices.size]
