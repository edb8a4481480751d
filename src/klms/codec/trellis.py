"""Paths through the trellis: the selection of indices when candidates depend on earlier indices.

With `memory` bits, block `m` is addressed by the last `memory + bits` bits of the index stream,

    c_m = (c_{m-1} << bits | k_m) mod 2^(memory + bits),   c = 0 before the first block of a segment,

so that a block still costs `bits` bits, but the encoder chooses among all paths through a trellis whose state is the
last `memory` bits. A path has the sum of its candidates' scores. `greedy` takes the best path (Viterbi, 1967). `sample`
draws a path with probability proportional to `exp(score)`, exactly, by forward filtering and backward sampling:
`alpha(s)` is the total weight of all paths into state `s`, and a predecessor is drawn in proportion to its share of
`alpha`, for all states while the weights are at hand; one uniform number per block suffices, because only one of its
predecessors is on the path. `matched` multiplies the scores by a `beta` per segment, as in `selection.py`.
"""

from typing import NamedTuple

import numpy as np

from klms.codec.selection import GREEDY, MATCHED, BetaSearch, Results, Selector, draw, improved, select
from klms.numerics.elementary import largest, take_exponentials, take_logarithms, total
from klms.numerics.jit import Float64, UInt16, kernel

SEGMENT = 256
"""Blocks per segment, part of the format. Segments are coded independently, which bounds the encoder's memory."""
_IMPOSSIBLE = -1e30
_TINY = 1e-290  # stands for a weight of 0 where a logarithm is taken
_MAX_BETA = 8.0  # close to the best path
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
    scores: Float64  # of all blocks of the segment, for `matched`
    wanted: Float64  # expected score of each block of the segment under `q`, for `matched`


@kernel
def new_paths(selector: Selector) -> Paths:
    """Allocate the paths of one segment at a time."""
    states = 1 << selector.memory
    candidates = 1 << (selector.bits + selector.memory)
    kept = selector.segment if selector.rule == MATCHED and selector.memory > 0 else 0
    return Paths(
        selector.bits,
        selector.memory,
        np.empty(states),
        np.empty(states),
        np.empty(states),
        np.empty(states),
        np.empty(candidates),
        np.empty((selector.segment, states), dtype=np.uint16),
        np.empty((kept, candidates)),
        np.empty(kept),
    )


@kernel
def select_block(
    m: int, scores: Float64, wanted: float, selector: Selector, linked: bool | None, paths: Paths, results: Results
) -> None:
    """Select the index of block `m`, or, with memory, extend the paths and select those of a segment at its end.

    `wanted` is the expected score under `q`. Blocks must come in order, whole segments at a time; `scores` is scratch
    space afterwards. Without memory, `linked` must be None: then Numba prunes the rest and compiles no trellis.
    """
    if linked is None:
        results.indices[m] = select(scores, selector.rule, selector.uniforms[m], wanted, paths.weights)
        return
    place = m % SEGMENT
    if selector.rule == MATCHED:
        for c in range(scores.size):  # assigning the whole array compiles two seconds longer
            paths.scores[place, c] = scores[c]
        paths.wanted[place] = wanted
    else:
        _extend(paths, place, scores, 1.0, selector.rule, selector.uniforms[m])
    blocks = results.indices.size
    if place == SEGMENT - 1 or m == blocks - 1:
        if selector.rule == MATCHED:
            beta = _matching_beta(paths, place + 1)
            for n in range(place + 1):
                _extend(paths, n, paths.scores[n], beta, selector.rule, selector.uniforms[m - place + n])
        _trace(paths, selector.rule, selector.uniforms[blocks + m // SEGMENT], results.indices[m - place : m + 1])


@kernel
def _extend(paths: Paths, place: int, scores: Float64, beta: float, rule: int, uniform: float) -> None:
    """Extend all paths by the block at `place` of the segment, given the scores of its candidates."""
    _weigh(paths, place, scores, beta)
    if rule == GREEDY:
        _keep_best(paths, paths.predecessors[place])
    else:
        take_exponentials(paths.weights, 1.0, paths.weights)
        _sum_and_draw(paths, paths.predecessors[place], uniform)


@kernel
def _weigh(paths: Paths, place: int, scores: Float64, beta: float) -> None:
    """Set the weight of a candidate to `beta` times its score plus that of the paths before it; the largest is 0."""
    branches = 1 << paths.bits
    weights = paths.weights
    if place == 0:  # all paths start in state 0
        paths.log_alpha[:] = _IMPOSSIBLE
        paths.log_alpha[0] = 0.0
    for s in range(paths.log_alpha.size):
        before = paths.log_alpha[s]
        for c in range(s * branches, (s + 1) * branches):
            weights[c] = beta * scores[c] + before
    top = largest(weights)
    for c in range(weights.size):
        weights[c] -= top


@kernel
def _keep_best(paths: Paths, predecessors: UInt16) -> None:
    best = paths.log_alpha
    states = best.size
    for s in range(states):
        best[s] = paths.weights[s]
    predecessors[:] = 0
    for branch in range(1, 1 << paths.bits):
        row = paths.weights[branch * states : (branch + 1) * states]
        for s in range(states):
            better = row[s] > best[s]
            best[s] = row[s] if better else best[s]
            predecessors[s] = branch if better else predecessors[s]


@kernel
def _sum_and_draw(paths: Paths, predecessors: UInt16, uniform: float) -> None:
    """Add up the weights of all paths into each state, and draw its predecessor in proportion to them."""
    alpha = paths.alpha
    states = alpha.size
    branches = 1 << paths.bits
    alpha[:] = 0.0
    for branch in range(branches):
        row = paths.weights[branch * states : (branch + 1) * states]
        for s in range(states):
            alpha[s] += row[s]
    running, limits = paths.running, paths.limits
    running[:] = 0.0
    for s in range(states):
        limits[s] = uniform * alpha[s]
    predecessors[:] = 0
    for branch in range(branches - 1):
        row = paths.weights[branch * states : (branch + 1) * states]
        for s in range(states):
            running[s] += row[s]
            predecessors[s] += running[s] <= limits[s]
    for s in range(states):
        paths.log_alpha[s] = alpha[s] if alpha[s] > _TINY else _TINY
    take_logarithms(paths.log_alpha, running)


@kernel
def _matching_beta(paths: Paths, blocks: int) -> float:
    """Solve for the `beta` at which the expected score of a path through the segment is the wanted one."""
    wanted = 0.0
    for place in range(blocks):
        wanted += paths.wanted[place]
    search = BetaSearch(1.0, 0.0, _MAX_BETA)
    for _ in range(_BETA_STEPS):
        mean, variance = _path_moments(paths, blocks, search.beta)
        if abs(mean - wanted) < _BETA_TOLERANCE * abs(wanted):
            break
        search = improved(search, mean, variance, wanted)
    return search.beta


@kernel
def _path_moments(paths: Paths, blocks: int, beta: float) -> tuple[float, float]:
    """Return the mean and the variance of a path's score, when paths are drawn in proportion to `exp(beta score)`."""
    states = paths.alpha.size
    mean = np.zeros(states)
    square = np.zeros(states)
    for place in range(blocks):
        scores = paths.scores[place]
        _weigh(paths, place, scores, beta)
        take_exponentials(paths.weights, 1.0, paths.weights)
        alpha, next_mean, next_square = paths.alpha, paths.running, paths.limits
        alpha[:] = 0.0
        next_mean[:] = 0.0
        next_square[:] = 0.0
        for c in range(scores.size):
            before, after = c >> paths.bits, c & (states - 1)
            weight = paths.weights[c]
            alpha[after] += weight
            next_mean[after] += weight * (mean[before] + scores[c])
            next_square[after] += weight * (square[before] + scores[c] * (2.0 * mean[before] + scores[c]))
        for s in range(states):
            paths.log_alpha[s] = alpha[s] if alpha[s] > _TINY else _TINY
            mean[s] = next_mean[s] / paths.log_alpha[s]
            square[s] = next_square[s] / paths.log_alpha[s]
        take_logarithms(paths.log_alpha, paths.running)
    mass = total(paths.alpha)
    average = total(paths.alpha * mean) / mass
    return average, total(paths.alpha * square) / mass - average * average


@kernel
def _trace(paths: Paths, rule: int, uniform: float, indices: UInt16) -> None:
    """Choose the last state, follow its path back, and write the index of each block."""
    branches = 1 << paths.bits
    if rule == GREEDY:
        state = int(np.argmax(paths.log_alpha))
    else:
        state = draw(paths.alpha, uniform * total(paths.alpha))
    for place in range(indices.size - 1, -1, -1):
        candidate = (int(paths.predecessors[place, state]) << paths.memory) | state
        indices[place] = candidate & (branches - 1)
        state = candidate >> paths.bits


@kernel
def addresses(indices: UInt16, bits: int, memory: int) -> UInt16:
    """Return the candidate `c_m` of every block, given the index of every block."""
    out = np.empty(indices.size, dtype=np.uint16)
    mask = (1 << (bits + memory)) - 1
    candidate = 0
    for m in range(indices.size):
        if m % SEGMENT == 0:
            candidate = 0
        candidate = ((candidate << bits) | int(indices[m])) & mask
        out[m] = candidate
    return out
