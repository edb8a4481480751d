"""Encoding and decoding of blocks of a discrete family.

The score of a candidate is a sum of steps: with cumulative thresholds `t_a` and log ratios `l_a`,

    log q(y)/p(y) = l_last + sum over a of (l_a - l_{a+1}) [u < t_a]

so a Bernoulli coordinate takes one comparison per candidate and a ternary coordinate two. Words and thresholds are
shifted by -32768, which turns unsigned comparisons into signed ones, and steps are 16-bit integers in a unit chosen
per block, so that sixteen candidates fit into a 256-bit register. Running sums move to 32 bits before they overflow.
"""

from typing import NamedTuple

import numpy as np

from klms.codec.candidates import SharedWords, chosen_words, coordinate_words, expand, expand_two, signed
from klms.codec.distributions import Values, log_ratios
from klms.codec.selection import Batch
from klms.numerics.jit import Float32, Float64, Int16, Int32, Int64, UInt16, UInt64, inlined, kernel
from klms.numerics.philox import buffer_size

_FLUSH_STEPS = 32
_LARGEST_SUM = 32000.0  # rounding adds at most half a unit per step in at most 256 steps, so sums stay below 32767


class _Step(NamedTuple):
    """One step of the score: candidates whose word is below the threshold collect `height`."""

    words: Int16  # words of the lower half of the candidates
    flip: np.int16  # generator of the last index bit: the upper half of the candidates has the words XOR `flip`
    threshold: np.int16
    height: np.int16


@inlined
def _add_steps(low: Int16, high: Int16, one: _Step, two: _Step) -> None:
    """Add two steps at once, and do the last doubling in registers: memory traffic limits this loop."""
    words_0, flip_0, threshold_0, height_0 = one
    words_1, flip_1, threshold_1, height_1 = two
    zero = np.int16(0)
    for k in range(low.size):
        word_0, word_1 = words_0[k], words_1[k]
        a = np.int16(height_0 if word_0 < threshold_0 else zero)
        b = np.int16(height_1 if word_1 < threshold_1 else zero)
        low[k] = np.int16(low[k] + np.int16(a + b))
        a = np.int16(height_0 if np.int16(word_0 ^ flip_0) < threshold_0 else zero)
        b = np.int16(height_1 if np.int16(word_1 ^ flip_1) < threshold_1 else zero)
        high[k] = np.int16(high[k] + np.int16(a + b))


@inlined
def _weigh_block(q: Float64, ratio: Float64, heights: Int16) -> tuple[float, float, float]:
    """Fill `heights`; return, in nats, their unit, the block's KL, and the score of the last symbol everywhere."""
    symbols, n = q.shape
    per_flush = max(_FLUSH_STEPS // (symbols - 1), 1)
    kl = base = group = most = 0.0
    for o in range(n):
        if o % per_flush == 0:
            group = 0.0
        for a in range(symbols - 1):
            kl += q[a, o] * ratio[a, o]
            group += abs(ratio[a, o] - ratio[a + 1, o])
        kl += q[symbols - 1, o] * ratio[symbols - 1, o]
        base += ratio[symbols - 1, o]
        most = max(most, group)
    scale = _LARGEST_SUM / most if most > 0.0 else 0.0
    for o in range(n):
        for a in range(symbols - 1):
            heights[o * (symbols - 1) + a] = np.int16(np.rint((ratio[a, o] - ratio[a + 1, o]) * scale))
    return most / _LARGEST_SUM, max(kl, 0.0), base


@kernel
def _score_block(
    u: UInt16,
    start: int,
    thresholds: UInt16,
    generators: Int16,
    window: int,
    heights: Int16,
    expanded: Int16,
    partial: Int16,
    total: Int32,
) -> None:
    """Set `total[k]` to the sum of the steps that candidate `k` collects over the block from `start` onwards.

    Steps are added in pairs: of two coordinates if `expanded` has two rows of words, otherwise of one. `partial` holds
    the running sums since the last flush.
    """
    per_coordinate, n = thresholds.shape[0], u.size
    per_flush = max(_FLUSH_STEPS // per_coordinate, 1)
    half = partial.size // 2
    last = generators.shape[0] - 1
    low, high = partial[:half], partial[half:]
    zero = np.int16(0)
    for k in range(total.size):
        partial[k] = 0
        total[k] = 0
    stride = expanded.ndim
    for o in range(0, n, stride):
        flip = generators[last, window + o]
        if expanded.ndim == 2:  # known at compile time, so that only one of the branches is compiled
            other = min(o + 1, n - 1)
            height = heights[o + 1] if o + 1 < n else zero
            expand_two(signed(u[o]), signed(u[other]), generators, window + o, window + other, last, expanded)
            one = _Step(expanded[0], flip, signed(thresholds[0, start + o]), heights[o])
            two = _Step(expanded[1], generators[last, window + other], signed(thresholds[0, start + other]), height)
            _add_steps(low, high, one, two)
        else:
            expand(signed(u[o]), generators, window + o, last, expanded)
            for a in range(0, per_coordinate, 2):
                other = min(a + 1, per_coordinate - 1)
                height = heights[o * per_coordinate + other] if other > a else zero
                one = _Step(expanded, flip, signed(thresholds[a, start + o]), heights[o * per_coordinate + a])
                two = _Step(expanded, flip, signed(thresholds[other, start + o]), height)
                _add_steps(low, high, one, two)
        if (o + stride) % per_flush == 0:
            for k in range(total.size):
                total[k] += partial[k]
                partial[k] = 0
    for k in range(total.size):
        total[k] += partial[k]


class _Scratch(NamedTuple):
    """Arrays that one block after the other uses. Numba would take long to compile their allocation."""

    laws: Float64
    logarithms: Float64
    buffer: UInt64
    heights: Int16
    expanded: Int16  # two rows of words for a Bernoulli distribution, otherwise one
    partial: Int16
    total: Int32


def score_blocks(bounds: Int64, probabilities: Float32, thresholds: UInt16, shared: SharedWords, batch: Batch) -> None:
    """Score all candidates of a batch of blocks, given the probabilities of `q` and the thresholds of `p`."""
    steps, size, candidates = len(thresholds), shared.largest, batch.scores.shape[1]
    scratch = _Scratch(
        laws=np.empty(2 * (steps + 1) * size),
        logarithms=np.empty(size),
        buffer=np.empty(buffer_size(size), dtype=np.uint64),
        heights=np.empty(steps * size, dtype=np.int16),
        expanded=np.empty((2, candidates // 2) if steps == 1 else candidates // 2, dtype=np.int16),
        partial=np.empty(candidates, dtype=np.int16),
        total=np.empty(candidates, dtype=np.int32),
    )
    _score_blocks(bounds, probabilities, thresholds, shared, batch, scratch)


@kernel
def _score_blocks(
    bounds: Int64, probabilities: Float32, thresholds: UInt16, shared: SharedWords, batch: Batch, scratch: _Scratch
) -> None:
    symbols = thresholds.shape[0] + 1
    laws, logarithms, buffer, heights, expanded, partial, total = scratch
    for m in range(batch.first, batch.first + batch.scores.shape[0]):
        start = bounds[m]
        n = bounds[m + 1] - start
        q = laws[: symbols * n].reshape(symbols, n)
        ratio = laws[symbols * n : 2 * symbols * n].reshape(symbols, n)
        log_ratios(probabilities, thresholds, start, q, ratio, logarithms)
        unit, kl, base = _weigh_block(q, ratio, heights)
        u = coordinate_words(buffer, start, n, shared)
        _score_block(u, start, thresholds, shared.signed, int(shared.windows[m]), heights, expanded, partial, total)
        for k in range(total.size):
            batch.scores[m - batch.first, k] = total[k] * unit
        batch.wanted[m - batch.first] = kl - base
        batch.nats[m - batch.first] = kl


@kernel
def decode_blocks(
    first: int,
    end: int,
    bounds: Int64,
    indices: UInt16,
    shared: SharedWords,
    thresholds: UInt16,
    values: Values,
    out: Values,
) -> None:
    """Write the chosen candidates of the blocks `first <= m < end` to `out`."""
    per_coordinate = thresholds.shape[0]
    buffer = np.empty(buffer_size(shared.largest), dtype=np.uint64)
    for m in range(first, end):
        start = bounds[m]
        n = bounds[m + 1] - start
        u = chosen_words(buffer, m, start, n, int(indices[m]), shared)
        if per_coordinate == 1:
            for o in range(n):
                out[start + o] = values[0] if u[o] < thresholds[0, start + o] else values[1]
        else:
            for o in range(n):
                symbol = 0
                for a in range(per_coordinate):
                    symbol += u[o] >= thresholds[a, start + o]
                out[start + o] = values[symbol]
