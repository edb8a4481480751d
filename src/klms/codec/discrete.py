"""Scoring, encoding and decoding blocks of a discrete family.

The score of a candidate is a sum of steps: with cumulative thresholds `t_a` and log ratios `l_a`,

    log q(y)/p(y) = l_last + sum over a of (l_a - l_{a+1}) [u < t_a]

so a Bernoulli coordinate is one comparison a candidate and a ternary one two. Words and thresholds are shifted by
-32768, which turns unsigned comparison into signed comparison, and steps are 16-bit integers in units of the block:
sixteen candidates fit a 256-bit register. The running sums move to 32 bits before they can overflow.
"""

import numpy as np
import numpy.typing as npt

from klms.codec._jit import inlined, kernel
from klms.codec.candidates import chosen_words, expand, expand_two
from klms.codec.distributions import log_ratios
from klms.codec.philox import U_STREAM, buffer_size, words
from klms.codec.selection import select

Float64 = npt.NDArray[np.float64]

_FLUSH_STEPS = 32
_LARGEST_SUM = 32000.0  # rounding adds at most half a unit a step, 128 steps at the most: still below 32767


@inlined
def _add_steps(
    low: npt.NDArray[np.int16],
    high: npt.NDArray[np.int16],
    words_0: npt.NDArray[np.int16],
    flip_0: np.int16,
    threshold_0: np.int16,
    step_0: np.int16,
    words_1: npt.NDArray[np.int16],
    flip_1: np.int16,
    threshold_1: np.int16,
    step_1: np.int16,
) -> None:
    """Add two steps to all candidates; the upper half of the candidates uses the words XOR `flip`.

    Two at a time, and the last doubling in registers: both save memory traffic, which is what this loop is made of.
    """
    zero = np.int16(0)
    for k in range(low.size):
        word_0 = words_0[k]
        word_1 = words_1[k]
        a = np.int16(step_0 if word_0 < threshold_0 else zero)
        b = np.int16(step_1 if word_1 < threshold_1 else zero)
        low[k] = np.int16(low[k] + np.int16(a + b))
        a = np.int16(step_0 if np.int16(word_0 ^ flip_0) < threshold_0 else zero)
        b = np.int16(step_1 if np.int16(word_1 ^ flip_1) < threshold_1 else zero)
        high[k] = np.int16(high[k] + np.int16(a + b))


@kernel
def _weigh_block(
    q: Float64, ratio: Float64, per_flush: int, steps: npt.NDArray[np.int16]
) -> tuple[float, float, float]:
    """Fill `steps`, coordinate by coordinate.

    Return, in nats, the unit they are in, the block's KL, and the score of having the last symbol everywhere.
    """
    symbols, n = q.shape
    kl = 0.0
    base = 0.0
    group = 0.0
    most = 0.0
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
            steps[o * (symbols - 1) + a] = np.int16(np.rint((ratio[a, o] - ratio[a + 1, o]) * scale))
    return most / _LARGEST_SUM, max(kl, 0.0), base


@kernel
def _score_block(
    start: int,
    n: int,
    thresholds: npt.NDArray[np.uint16],
    steps: npt.NDArray[np.int16],
    u: npt.NDArray[np.uint16],
    window: int,
    generators: npt.NDArray[np.int16],
    per_flush: int,
    expanded: npt.NDArray[np.int16],
    partial: npt.NDArray[np.int16],
    sums: npt.NDArray[np.int32],
) -> None:
    """`sums[k]` = the steps that candidate `k` collects over the block, in units."""
    per_coordinate = thresholds.shape[0]
    half = partial.size // 2
    last = generators.shape[1] - 1
    low = partial[:half]
    high = partial[half:]
    words_0 = expanded[0]
    words_1 = expanded[1]
    zero = np.int16(0)
    partial[:] = 0
    sums[:] = 0
    stride = 2 if per_coordinate == 1 else 1
    for o in range(0, n, stride):
        flip_0 = generators[window + o, last]
        if per_coordinate == 1:
            other = min(o + 1, n - 1)
            step_1 = steps[o + 1] if o + 1 < n else zero
            first_0 = np.int16(int(u[o]) - 32768)
            first_1 = np.int16(int(u[other]) - 32768)
            threshold_0 = np.int16(int(thresholds[0, start + o]) - 32768)
            threshold_1 = np.int16(int(thresholds[0, start + other]) - 32768)
            flip_1 = generators[window + other, last]
            expand_two(first_0, first_1, generators, window + o, window + other, last, words_0, words_1)
            _add_steps(low, high, words_0, flip_0, threshold_0, steps[o], words_1, flip_1, threshold_1, step_1)
        else:
            expand(np.int16(int(u[o]) - 32768), generators, window + o, last, words_0)
            for a in range(0, per_coordinate, 2):
                other = min(a + 1, per_coordinate - 1)
                step_0 = steps[o * per_coordinate + a]
                step_1 = steps[o * per_coordinate + other] if other > a else zero
                threshold_0 = np.int16(int(thresholds[a, start + o]) - 32768)
                threshold_1 = np.int16(int(thresholds[other, start + o]) - 32768)
                _add_steps(low, high, words_0, flip_0, threshold_0, step_0, words_0, flip_0, threshold_1, step_1)
        if (o + stride) % per_flush == 0:
            for k in range(sums.size):
                sums[k] += partial[k]
                partial[k] = 0
    for k in range(sums.size):
        sums[k] += partial[k]


@kernel
def encode_blocks(
    first: int,
    end: int,
    bounds: npt.NDArray[np.int64],
    probabilities: npt.NDArray[np.float32],
    thresholds: npt.NDArray[np.uint16],
    largest: int,
    windows: npt.NDArray[np.uint16],
    generators: npt.NDArray[np.int16],
    key: npt.NDArray[np.uint64],
    rule: int,
    uniforms: Float64,
    indices: npt.NDArray[np.uint16],
    kls: Float64,
) -> None:
    """Choose `indices[m]` and note `kls[m]` (nats) for the blocks `first <= m < end`."""
    per_coordinate = thresholds.shape[0]
    symbols = per_coordinate + 1
    candidates = 1 << generators.shape[1]
    per_flush = max(_FLUSH_STEPS // per_coordinate, 1)
    rows = np.empty(2 * symbols * largest)
    scratch = np.empty(largest)
    steps = np.empty(largest * per_coordinate, dtype=np.int16)
    buffer = np.empty(buffer_size(largest), dtype=np.uint64)
    expanded = np.zeros((2, max(candidates // 2, 1)), dtype=np.int16)
    partial = np.empty(candidates, dtype=np.int16)
    sums = np.empty(candidates, dtype=np.int32)
    scores = np.empty(candidates)
    weights = np.empty(candidates)
    for m in range(first, end):
        start = bounds[m]
        n = bounds[m + 1] - start
        q = rows[: symbols * n].reshape(symbols, n)
        ratio = rows[symbols * n : 2 * symbols * n].reshape(symbols, n)
        log_ratios(probabilities, thresholds, start, q, ratio, scratch)
        unit, kl, base = _weigh_block(q, ratio, per_flush, steps)
        u = words(buffer, start, n, U_STREAM, key)
        _score_block(start, n, thresholds, steps, u, int(windows[m]), generators, per_flush, expanded, partial, sums)
        for k in range(candidates):
            scores[k] = sums[k] * unit
        indices[m] = select(scores, rule, uniforms[m], kl - base, weights)
        kls[m] = kl


@kernel
def decode_blocks(
    first: int,
    end: int,
    bounds: npt.NDArray[np.int64],
    indices: npt.NDArray[np.uint16],
    thresholds: npt.NDArray[np.uint16],
    largest: int,
    windows: npt.NDArray[np.uint16],
    generators_by_bit: npt.NDArray[np.uint16],
    key: npt.NDArray[np.uint64],
    values: npt.NDArray[np.generic],
    out: npt.NDArray[np.generic],
) -> None:
    """Write the chosen candidates of the blocks `first <= m < end` to `out`."""
    per_coordinate = thresholds.shape[0]
    buffer = np.empty(buffer_size(largest), dtype=np.uint64)
    for m in range(first, end):
        start = bounds[m]
        n = bounds[m + 1] - start
        u = chosen_words(buffer, start, n, int(windows[m]), int(indices[m]), generators_by_bit, key)
        if per_coordinate == 1:
            for o in range(n):
                out[start + o] = values[0] if u[o] < thresholds[0, start + o] else values[1]
        else:
            for o in range(n):
                symbol = 0
                for a in range(per_coordinate):
                    symbol += u[o] >= thresholds[a, start + o]
                out[start + o] = values[symbol]
