"""Discrete families: Bernoulli and categorical distributions.

As `p`, they consist of cumulative 16-bit thresholds: a word `u` stands for symbol `a` iff `t_{a-1} <= u < t_a`. The
score of a candidate is a sum of steps, with log ratios `l_a`:

    log q(y)/p(y) = l_last + sum over a of (l_a - l_{a+1}) [u < t_a]

so a Bernoulli coordinate takes one comparison per candidate and a ternary coordinate two. Words and thresholds are
shifted by -32768, which turns unsigned comparisons into signed ones, and steps are 16-bit integers in a unit chosen
per block, so that sixteen candidates fit into a 256-bit register. Running sums move to 32 bits before they overflow.
"""

import math
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from klms.codec.blocks import Blocks
from klms.codec.candidates import SharedWords, chosen_words, coordinate_words, expand, expand_two, signed
from klms.codec.distributions import Distribution, Values, parameters
from klms.codec.selection import Batch
from klms.errors import InvalidArgument
from klms.numerics.checks import frozen
from klms.numerics.elementary import LN_2, take_logarithms
from klms.numerics.jit import Float32, Float64, Int16, Int32, Int64, UInt16, inlined, kernel
from klms.numerics.parallel import over
from klms.numerics.philox import buffer_size

MAX_ALPHABET = 256
SMALLEST_PROBABILITY = 2.0**-24
"""Replaces 0 in logarithms of `q`: a candidate that `q` excludes loses 24 bits of score and stays comparable."""

_KL_CHUNK = 4096
_FLUSH_STEPS = 32
_LARGEST_SUM = 32000.0  # rounding adds at most half a unit per step in at most 256 steps, so sums stay below 32767


class Discrete(Distribution):
    """A distribution over a small alphabet at each coordinate. Symbol `a` stands for `values[a]`."""

    values: Values

    @cached_property
    def probabilities(self) -> Float32:
        """One row per symbol; the last row may be missing, because it is 1 minus the sum of the others."""
        cumulated = self.thresholds / np.float32(65536)
        return frozen(np.diff(cumulated, axis=0, prepend=np.float32(0), append=np.float32(1)))

    @cached_property
    def thresholds(self) -> UInt16:
        """Entry `[a, i]` is the first word beyond symbol `a` at coordinate `i`; each symbol keeps at least a word."""
        out = np.empty((self.values.size - 1, self.d), dtype=np.uint16)
        _cumulate(self.probabilities, out)
        return frozen(out)

    def _write_kl(self, p: Self, start: int, out: Float64, threads: int | None) -> None:
        probabilities, thresholds = self.probabilities, p.thresholds

        def write(first: int, end: int, bounds: Int64) -> None:
            scratch = np.empty(_KL_CHUNK)
            for place in bounds[first:end].tolist():
                nats = out[place : place + _KL_CHUNK]
                q, ratio = np.empty((2, self.values.size, nats.size))
                _log_ratios(probabilities, thresholds, start + place, q, ratio, scratch)
                np.maximum((q * ratio).sum(axis=0), 0.0, out=nats)
                np.divide(nats, LN_2, out=nats)

        over(np.array([*range(0, out.size, _KL_CHUNK), out.size]), threads, write)

    def score(self, p: Self, blocks: Blocks, shared: SharedWords, batch: Batch) -> None:
        _score_blocks(blocks.bounds, self.probabilities, p.thresholds, shared, batch)

    def candidates(self, indices: UInt16, blocks: Blocks, shared: SharedWords, threads: int | None) -> Values:
        sample: Values = np.empty(self.d, dtype=self.values.dtype)
        over(blocks.bounds, threads, _decode_blocks, indices, shared, self.thresholds, self.values, sample)
        return sample

    @cached_property
    def most_kl(self) -> float:
        """Largest KL of any `q` to this distribution, reached by a `q` that always takes the least likely symbol."""
        counts = np.zeros(65537, dtype=np.int64)
        _count_least(self.thresholds, counts)
        widths = np.flatnonzero(counts)
        return float(counts[widths] @ (16.0 - np.log2(widths)))

    @property
    def plain_bits(self) -> float:
        return math.log2(self.values.size) * self.d

    @property
    def fixed_point(self) -> tuple[Values, UInt16]:
        return self.values, self.thresholds


class Bernoulli(Discrete):
    """Independent bits with `P(y_i = 1) = probability[i]`.

    As `p`, they are in fixed point: `y = 1` iff a word `u` is below `clip(rint(65536 probability), 1, 65535)`.

    >>> Bernoulli([0.9, 0.5]).kl(Bernoulli([0.5, 0.5])).round(3).tolist()
    [0.531, 0.0]
    """

    family = "bernoulli"
    number = 1
    values = frozen(np.array([1, 0], dtype=np.uint8))

    def __init__(self, probability: npt.ArrayLike) -> None:
        vector = parameters("probability", probability)
        if vector.min() < 0 or vector.max() > 1:
            raise InvalidArgument("probability must be in [0, 1]")
        self.d = vector.size
        self.probabilities = vector.reshape(1, -1)

    @property
    def probability(self) -> Float32:
        row: Float32 = self.probabilities[0]
        return row


class Categorical(Discrete):
    """Symbols with `P(y_i = values[a]) = probabilities[i, a]`, for 2 to 256 values that all coordinates share.

    >>> q = Categorical([[0.1, 0.8, 0.1]], values=[-1.0, 0.0, 1.0])
    >>> q.kl(q).item() < 1e-6
    True
    """

    family = "categorical"
    number = 2

    def __init__(self, probabilities: npt.ArrayLike, values: npt.ArrayLike) -> None:
        table = np.asarray(probabilities, dtype=np.float64)
        if table.ndim != 2 or table.shape[0] == 0:
            raise InvalidArgument("probabilities must be a table with one row per coordinate and one column per value")
        if not 2 <= table.shape[1] <= MAX_ALPHABET:
            raise InvalidArgument(f"probabilities must have 2 to {MAX_ALPHABET} columns, got {table.shape[1]}")
        self.values = parameters("values", values)
        if self.values.size != table.shape[1]:
            raise InvalidArgument(f"values must have one entry per column of probabilities ({table.shape[1]})")
        if not (table.min() >= 0 and table.max() <= 1):
            raise InvalidArgument("probabilities must be in [0, 1]")
        totals = sum(table.T)  # in order, unlike np.sum
        if not (np.abs(totals - 1) <= 1e-3).all():
            raise InvalidArgument("probabilities must sum to 1 in every row")
        self.d = len(table)
        self.probabilities = frozen((table.T / totals).astype(np.float32, order="C"))

    @classmethod
    def of_rows(cls, rows: Float32, values: npt.ArrayLike) -> "Categorical":
        """Wrap probabilities, one row per value, without a copy; they become read-only."""
        law = cls.__new__(cls)
        law.d = rows.shape[1]
        law.values = parameters("values", values)
        law.probabilities = frozen(rows)
        if len(rows) != law.values.size:
            raise InvalidArgument(f"there must be one row per value ({law.values.size}), got {len(rows)}")
        return law

    @classmethod
    def quantised(cls, thresholds: UInt16, values: npt.ArrayLike) -> "Categorical":
        """Wrap thresholds, which become read-only; for a `p`, they take less memory than probabilities."""
        law = cls.__new__(cls)
        law.d = thresholds.shape[1]
        law.values = parameters("values", values)
        law.thresholds = frozen(thresholds)
        if len(thresholds) != law.values.size - 1:
            raise InvalidArgument(f"thresholds must have one row per value but the last ({law.values.size - 1})")
        if not (thresholds[0] > 0).all() or not (thresholds[1:] > thresholds[:-1]).all():
            raise InvalidArgument("thresholds must be positive and increase from row to row")
        return law

    def check_same_family(self, p: Distribution) -> None:
        super().check_same_family(p)
        if isinstance(p, Categorical) and not np.array_equal(p.values, self.values):
            raise InvalidArgument("p must have the same values as q")


@inlined
def next_threshold(cumulated: float, before: int, after: int) -> int:
    """Return a threshold, given the previous one and the number of symbols after it; each symbol keeps a word."""
    return min(max(int(np.rint(cumulated * 65536.0)), before + 1), 65536 - after)


@kernel
def _cumulate(probabilities: Float32, out: UInt16) -> None:
    steps, d = out.shape
    for i in range(d):
        total = 0.0
        below = 0
        for a in range(steps):
            total += np.float64(probabilities[a, i])
            below = next_threshold(total, below, steps - a)
            out[a, i] = below


@kernel
def _count_least(thresholds: UInt16, counts: Int64) -> None:
    """Count the coordinates by the number of words, of 65536, that stand for a coordinate's least likely symbol."""
    steps, d = thresholds.shape
    for i in range(d):
        below = 0
        least = 65536
        for a in range(steps):
            least = min(least, int(thresholds[a, i]) - below)
            below = int(thresholds[a, i])
        counts[min(least, 65536 - below)] += 1


@kernel
def _log_ratios(
    probabilities: Float32, thresholds: UInt16, start: int, q: Float64, ratio: Float64, scratch: Float64
) -> None:
    """Write `q_a` and `log(q_a / p_a)` to row `a` of `q` and `ratio`, for the coordinates from `start` onwards."""
    symbols, n = q.shape
    for a in range(symbols):
        for o in range(n):
            own = np.float64(probabilities[a, start + o]) if a < probabilities.shape[0] else 1.0 - q[0, o]
            own = own if own > SMALLEST_PROBABILITY else SMALLEST_PROBABILITY
            below = np.float64(thresholds[a - 1, start + o]) if a > 0 else 0.0
            above = np.float64(thresholds[a, start + o]) if a < symbols - 1 else 65536.0
            q[a, o] = own
            ratio[a, o] = own * 65536.0 / (above - below)
        take_logarithms(ratio[a], scratch)


class _Step(NamedTuple):
    """One step of the score: candidates whose word is below the threshold collect `height`."""

    words: Int16  # words of the lower half of the candidates
    flip: np.int16  # generator of the last index bit: the upper half of the candidates has the words XOR `flip`
    threshold: np.int16
    height: np.int16


@inlined
def _add_steps(low: Int16, high: Int16, one: _Step, two: _Step) -> None:
    """Add two steps at once, and do the last doubling in registers, because memory traffic limits this loop."""
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
    """Fill `heights`, the heights of all steps of a block in a common unit.

    Return, in nats, this unit, the block's KL, and the score of the candidate that has the last symbol everywhere.
    """
    symbols, n = q.shape
    per_flush = max(_FLUSH_STEPS // (symbols - 1), 1)
    kl = base = since_flush = most = 0.0
    for o in range(n):
        if o % per_flush == 0:
            since_flush = 0.0
        for a in range(symbols - 1):
            kl += q[a, o] * ratio[a, o]
            since_flush += abs(ratio[a, o] - ratio[a + 1, o])
        kl += q[symbols - 1, o] * ratio[symbols - 1, o]
        base += ratio[symbols - 1, o]
        most = max(most, since_flush)
    scale = _LARGEST_SUM / most if most > 0.0 else 0.0
    for o in range(n):
        for a in range(symbols - 1):
            heights[o * (symbols - 1) + a] = np.int16(np.rint((ratio[a, o] - ratio[a + 1, o]) * scale))
    return most / _LARGEST_SUM, max(kl, 0.0), base


@kernel
def _score_block(
    u: UInt16, thresholds: UInt16, generators: Int16, heights: Int16, expanded: Int16, partial: Int16, total: Int32
) -> None:
    """Set `total[k]` to the sum of the steps that candidate `k` collects over the coordinates of a block.

    Steps are added in pairs, which belong to two coordinates of a Bernoulli distribution, or to one coordinate of a
    categorical one. `partial` holds the running sums since the last flush.
    """
    steps, n = thresholds.shape
    stride = 2 if steps == 1 else 1
    per_flush = max(_FLUSH_STEPS // steps, 1)
    last = generators.shape[0] - 1
    half = partial.size // 2
    low, high = partial[:half], partial[half:]
    zero = np.int16(0)
    partial[:] = 0
    total[:] = 0
    for o in range(0, n, stride):
        flip = generators[last, o]
        if steps == 1:
            other = min(o + 1, n - 1)
            height = heights[other] if other > o else zero
            expand_two(signed(u[o]), signed(u[other]), generators, o, other, last, expanded)
            one = _Step(expanded[0], flip, signed(thresholds[0, o]), heights[o])
            two = _Step(expanded[1], generators[last, other], signed(thresholds[0, other]), height)
            _add_steps(low, high, one, two)
        else:
            expand(signed(u[o]), generators, o, last, expanded[0])
            for a in range(0, steps, 2):
                other = min(a + 1, steps - 1)
                height = heights[o * steps + other] if other > a else zero
                one = _Step(expanded[0], flip, signed(thresholds[a, o]), heights[o * steps + a])
                two = _Step(expanded[0], flip, signed(thresholds[other, o]), height)
                _add_steps(low, high, one, two)
        if (o + stride) % per_flush == 0:
            for k in range(total.size):
                total[k] += partial[k]
                partial[k] = 0
    for k in range(total.size):
        total[k] += partial[k]


@kernel
def _score_blocks(bounds: Int64, probabilities: Float32, thresholds: UInt16, shared: SharedWords, batch: Batch) -> None:
    steps = thresholds.shape[0]
    candidates = batch.scores.shape[1]
    laws = np.empty((2, (steps + 1) * shared.largest))
    logarithms = np.empty(shared.largest)
    buffer = np.empty(buffer_size(shared.largest), dtype=np.uint64)
    heights = np.empty(steps * shared.largest, dtype=np.int16)
    expanded = np.empty((2, candidates // 2), dtype=np.int16)
    partial = np.empty(candidates, dtype=np.int16)
    total = np.empty(candidates, dtype=np.int32)
    for m in range(batch.first, batch.first + batch.scores.shape[0]):
        start = bounds[m]
        n = bounds[m + 1] - start
        window = int(shared.windows[m])
        q = laws[0, : (steps + 1) * n].reshape(steps + 1, n)
        ratio = laws[1, : (steps + 1) * n].reshape(steps + 1, n)
        _log_ratios(probabilities, thresholds, start, q, ratio, logarithms)
        unit, kl, base = _weigh_block(q, ratio, heights)
        u = coordinate_words(buffer, start, n, shared)
        generators = shared.signed[:, window : window + n]
        _score_block(u, thresholds[:, start : start + n], generators, heights, expanded, partial, total)
        for k in range(candidates):
            batch.scores[m - batch.first, k] = total[k] * unit
        batch.wanted[m - batch.first] = kl - base
        batch.nats[m - batch.first] = kl


@kernel
def _decode_blocks(
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
