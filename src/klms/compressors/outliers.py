"""The few largest entries of an update, sent by themselves, so that the rotation does not smear them over all others.

An outlier is an entry whose magnitude is at least its group's threshold; the groups are the ranges of `Pieces`.
What is sent of them is in `outlier_coder.py`.

Which pay is a search over a histogram of magnitudes. Let a group of `n` entries have a rest of mean square `s^2` that
is coded at `r` bits each, with error `n s^2 / (4^r - 1)`. At the price of `theta 2 ln 2` per bit, that rate is best
where `u = 4^r` solves `theta (u - 1)^2 = s^2 u`, and a step `D` with `D^2 / 12 = theta`. The thresholds with the least
sum of error and price are chosen at every `theta`, and the `theta` at which all fits into the bits that are there.

A sparse group may do without the rotation, which gives every zero a share of the error: then each entry `v` below the
threshold `t` is rounded to `t` with probability `|v| / t`, else to 0, with error `|v| (t - |v|)`, as in QSGD. The
decoder sees no difference.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from klms.codec import SharedKey
from klms.compressors.outlier_coder import MANTISSA, NOTHING, Found, edge_of, shared_dither, write
from klms.compressors.piece_rates import LOSS
from klms.compressors.pieces import Ranges
from klms.numerics.jit import Float32, Float64, Int64, kernel

_BINS = NOTHING + 1
_TRIED = 72  # thresholds, from the largest entry downwards: 18 octaves
_SMALLEST = 4 * (127 - 60)  # bin of 2^-60: smaller thresholds and steps could not be sent
_SEARCH_STEPS = 20
_ATTEMPTS = 4
_CLUSTERED = 0.4  # of the estimate
_SPARSE = 0.5  # share of entries that are not zero
_ACCURACY = 0.005  # of the bits of outliers, relative to all bits
_EXTREMES = 1e-12, 1e3  # of theta, relative to the squared norm
_MOST_STEPS = 1 << 22  # of the largest entry: a float32 still has room for the dither


class Plan(NamedTuple):
    """What the search found."""

    thresholds: Int64  # bin of each group's threshold; `NOTHING` where none is sent apart
    rounded: npt.NDArray[np.bool_]  # whether a group's other entries are rounded at random
    step: float
    bits: Float64  # of the outliers of each group, about
    error: float  # of the whole vector, about


@kernel
def _histograms(gathered: Float32, bounds: Int64) -> Float64:
    """Return the number of entries, their sum and their squares, by group and bin."""
    table = np.zeros((3, bounds.size - 1, _BINS))
    for group in range(bounds.size - 1):
        for i in range(bounds[group], bounds[group + 1]):
            magnitude = abs(gathered[i])
            if magnitude > 0:
                number = _bin(magnitude)
                table[0, group, number] += 1
                table[1, group, number] += np.float64(magnitude)
                table[2, group, number] += np.float64(magnitude) * np.float64(magnitude)
    return table


@kernel
def _bin(magnitude: Float32) -> int:
    return int(np.float32(magnitude).view(np.int32)) >> MANTISSA


def nothing(ranges: Ranges) -> Plan:
    """Return the plan to send nothing apart."""
    count = ranges.sizes.size
    return Plan(np.full(count, NOTHING), np.zeros(count, dtype=np.bool_), 1.0, np.zeros(count), 0.0)


def price(gathered: Float32, ranges: Ranges, bits: float, contracting: bool) -> tuple[float, float]:
    """Return `theta` and the error with so many bits for the vector: one more reduces the error by `theta 2 ln 2`."""
    if bits <= 0:
        return math.inf, math.inf
    plan = _search(_histograms(gathered, ranges.bounds), ranges, bits, np.ones(ranges.sizes.size), contracting)
    return plan.step**2 / 12, plan.error


def plan(gathered: Float32, ranges: Ranges, bits: float, rng: np.random.Generator, contracting: bool = False) -> Plan:
    """Return what is better sent apart, with `bits` bits for the whole vector.

    What outliers cost is estimated at first, then learned from trials. Clusters of zeros may halve the cost, so sparse
    groups get a second chance. Trials have a randomness of their own: a choice that depended on the dither or on the
    rounding that is sent would bias the estimate.
    """
    bounds, sizes = ranges
    histograms, costs, accepted = _histograms(gathered, bounds), np.ones(sizes.size), nothing(ranges)
    for attempt in range(_ATTEMPTS):
        plan = _search(histograms, ranges, bits, costs, contracting)
        if attempt == 0 and not plan.bits.any():
            costs = np.where(histograms[0].sum(axis=1) < _SPARSE * sizes, _CLUSTERED, 1.0)
            plan = _search(histograms, ranges, bits, costs, contracting)
        if not plan.bits.any():
            return plan
        found = _find(gathered, bounds, plan, rng)
        dither = rng.random(sum(group.places.size for group in found), dtype=np.float32)
        used = write(found, plan.step, dither)[1]
        excess, tolerated = float(np.sum(used - plan.bits)), max(_ACCURACY * bits, 64)
        if excess < tolerated:
            accepted = plan
        if abs(excess) < tolerated:
            break
        costs = np.where(plan.bits > 0, costs * used / np.maximum(plan.bits, 1), costs)
    return accepted


def take(gathered: Float32, ranges: Ranges, plan: Plan, key: SharedKey, rng: np.random.Generator) -> bytes:
    """Remove from the vector what is sent apart, and return the section that holds it; empty if nothing is."""
    if not plan.bits.any():
        return b""
    found = _find(gathered, ranges.bounds, plan, rng)
    for part, group in zip(_groups(gathered, ranges.bounds), found, strict=True):
        part[... if group.rounded else group.places] = 0
    return write(found, plan.step, shared_dither(sum(group.places.size for group in found), key))[0]


def _find(gathered: Float32, bounds: Int64, plan: Plan, rng: np.random.Generator) -> list[Found]:
    """Return what is sent apart of each group; entries are rounded anew in each call."""
    seed = int(rng.integers(1, 1 << 31))
    return [
        Found(threshold, bool(rounded), *_extract(part, threshold, edge_of(threshold), bool(rounded), seed + group))
        for group, (part, threshold, rounded) in enumerate(
            zip(_groups(gathered, bounds), plan.thresholds.tolist(), plan.rounded, strict=True)
        )
    ]


def _groups(gathered: Float32, bounds: Int64) -> list[Float32]:
    return [gathered[a:b] for a, b in pairwise(bounds.tolist())]


def _search(table: Float64, ranges: Ranges, bits: float, costs: Float64, contracting: bool) -> Plan:
    """Return what pays with `bits` bits if the outliers of a group take `costs` times the estimate."""
    sizes = ranges.sizes
    if bits <= 0 or not table[0, :, _SMALLEST:].any():
        return nothing(ranges)
    top = int(np.flatnonzero(table[0].any(axis=0))[-1])
    tried = np.arange(top + 1, max(top + 1 - _TRIED, _SMALLEST), -1)
    above = np.cumsum(table[:, :, ::-1], axis=2)[:, :, ::-1]
    above = np.pad(above, ((0, 0), (0, 0), (0, 1)))[:, :, tried]
    below = np.maximum(table.sum(axis=2)[:, :, None] - above, 0)
    edges = (tried << MANTISSA).astype(np.int32).view(np.float32).astype(np.float64)
    choices = Choices(sizes, above, below, edges, contracting)
    low, high = _EXTREMES[0] * float(below[2].max()) / int(sizes.sum()), _EXTREMES[1] * float(below[2].max())
    low = max(low, (float(edges[0]) / _MOST_STEPS) ** 2 / 12)
    best, apart = np.empty(sizes.size, dtype=np.int64), np.empty(sizes.size)
    for _ in range(_SEARCH_STEPS):
        theta = math.sqrt(low * high)
        low, high = (theta, high) if _choose(choices, theta, costs, best, apart)[0] > bits else (low, theta)
    error = _choose(choices, high, costs, best, apart)[1]
    thresholds = np.where(best > 0, tried[best % tried.size], NOTHING)
    return Plan(thresholds, best >= tried.size, math.sqrt(12 * high), apart, error)


class Choices(NamedTuple):
    """What a group may choose from: a threshold (an edge of a bin, the first of which nothing exceeds), twice.

    In the second half, what is below the threshold is rounded at random.
    """

    sizes: Int64
    above: Float64  # [number, sum or squares; group; edge]: of the entries from the edge on
    below: Float64
    edges: Float64
    contracting: bool  # whether the rest is coded with error `n s^2 / 4^r`


@kernel
def _choose(choices: Choices, theta: float, costs: Float64, best: Int64, best_apart: Float64) -> tuple[float, float]:
    """Set each group's best choice at the price `theta`, and the bits of its outliers; return total bits and error."""
    step = math.sqrt(12 * theta)
    total = total_error = 0.0
    for g in range(best.size):
        size = float(choices.sizes[g])
        least = math.inf
        best_coded = best_error = 0.0
        for e in range(choices.edges.size):
            edge, rest = choices.edges[e], choices.below[2, g, e]
            more = max(choices.above[1, g, e] - choices.above[0, g, e] * edge, 0.0) / step
            # The rest is coded.
            coded = size * math.log2(1 + _excess(rest / (size * theta), choices.contracting)) / 2
            error = rest * error_of_rest(rest / (size * theta), choices.contracting) if rest > 0 else 0.0
            count = choices.above[0, g, e]
            apart = costs[g] * _bits_apart(size, count, more)
            error += count * theta
            price = error + 2 * math.log(2) * theta * (apart + coded)
            if price < least:
                least, best[g], best_apart[g], best_coded, best_error = price, e, apart, coded, error
            # The rest is rounded.
            count += choices.below[1, g, e] / edge
            apart = costs[g] * _bits_apart(size, count, more)
            error = max(choices.below[1, g, e] * edge - rest, 0.0) + count * theta
            price = error + 2 * math.log(2) * theta * apart
            if price < least:
                least, best[g], best_apart[g], best_coded = price, choices.edges.size + e, apart, 0.0
                best_error = error
        total += best_apart[g] + best_coded
        total_error += best_error
    return total, total_error


@kernel
def _excess(ratio: float, contracting: bool) -> float:
    """Return `4^r - 1` of the rate `r` that is best for a rest of mean square `ratio theta`."""
    ratio *= LOSS
    return max(ratio - 1, 0.0) if contracting else (ratio + math.sqrt(ratio * (ratio + 4))) / 2


@kernel
def error_of_rest(ratio: float, contracting: bool) -> float:
    """Return the error of a rest of mean square `ratio theta`, above 0, relative to its squared norm."""
    excess = _excess(max(ratio, 1e-60), contracting)
    return min(LOSS / (1 + excess), 1.0) if contracting else LOSS / excess


@kernel
def _bits_apart(size: float, count: float, magnitudes: float) -> float:
    """Return the bits of `count` outliers with this sum of magnitudes, in steps: gaps, signs and magnitudes."""
    if count == 0:
        return 0.0
    some = max(count, 1.0)
    return count * (geometric_bits(size / some - 1) + 1 + geometric_bits(magnitudes / some)) + 48


@kernel
def geometric_bits(mean: float) -> float:
    """Return the entropy of a geometric variable with this mean."""
    mean = max(mean, 1e-3)
    return (mean + 1) * math.log2(mean + 1) - mean * math.log2(mean)


@kernel
def _extract(x: Float32, threshold: int, edge: np.float32, rounded: bool, seed: int) -> tuple[Int64, Float32]:
    """Return the places and the values of what is sent apart.

    The generator for rounding is Marsaglia's xorshift (2003): numbers from NumPy's would take as much memory as the
    update.
    """
    places, values = np.empty(1024, dtype=np.int64), np.empty(1024, dtype=np.float32)
    count = 0
    state = seed
    for i in range(x.size):
        value = x[i]
        magnitude = abs(value)
        if _bin(magnitude) < threshold:
            if not rounded or magnitude == 0:
                continue
            state ^= (state << 13) & 0xFFFFFFFF
            state ^= state >> 17
            state ^= (state << 5) & 0xFFFFFFFF
            if state * 2.0**-32 * np.float64(edge) >= np.float64(magnitude):
                continue
            value = edge if value > 0 else -edge
        if count == places.size:
            places = np.append(places, np.empty_like(places))
            values = np.append(values, np.empty_like(values))
        places[count], values[count] = i, value
        count += 1
    return places[:count], values[:count]
