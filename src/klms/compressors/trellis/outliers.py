"""Stage 2: the few largest entries, sent separately, so that the rotation does not spread them over all others.

An outlier is an entry whose magnitude is at least the threshold of its region. `outlier_coder.py` has the format.

A search over a histogram of magnitudes finds the outliers that are worth their bits. The other entries of a region are
coded at the rate that is best at a price of `2 ln 2 theta` per bit (`rates.py`), and the step `D` of outliers satisfies
`D^2 / 12 = theta`. At every `theta`, each region takes the threshold that minimises its error plus the price of its
bits; the search ends at the `theta` at which everything fits into the available bits.

A sparse region may do without the rotation, because the rotation gives every zero a share of the error. Then each entry
`v` below the threshold `t` is rounded to `t` with probability `|v| / t`, else to 0, with error `|v| (t - |v|)`, as in
QSGD. The decoder sees no difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from klms.codec import SharedKey
from klms.compressors.trellis.adaptive_bits import geometric_bits
from klms.compressors.trellis.outlier_coder import (
    MANTISSA,
    NOTHING,
    RegionOutliers,
    edge_of,
    read_outliers,
    shared_dither,
    write_outliers,
)
from klms.compressors.trellis.pieces import Regions
from klms.compressors.trellis.rates import best_excess, relative_error
from klms.compressors.trellis.stage import Stage
from klms.numerics.jit import Float32, Float64, Int64, kernel

_BINS = NOTHING + 1
_TRIED = 72  # thresholds, from the largest entry downwards: 18 octaves
_SMALLEST = 4 * (127 - 60)  # bin of 2^-60: smaller thresholds and steps could not be sent
_SEARCH_STEPS = 20
_COMMON_STEPS = 32  # for vectors of very different norms
_ATTEMPTS = 4
_CLUSTERED = 0.4  # bits of clustered outliers, relative to the estimate
_SPARSE = 0.5  # share of non-zero entries below which a region is sparse
_ACCURACY = 0.005  # of the bits of outliers, relative to all bits
_EXTREMES = 1e-12, 1e3  # of theta, relative to the squared norm
_MOST_STEPS = 1 << 22  # in the largest entry: a float32 still has room for the dither


class OutlierPlan(NamedTuple):
    """The result of the search for outliers."""

    thresholds: Int64  # bin of each region's threshold; `NOTHING` for a region without outliers
    rounded: npt.NDArray[np.bool_]  # whether a region's other entries are rounded at random
    step: float
    bits: Float64  # approximate bits of the outliers of each region
    error: float  # approximate error of the whole vector


@dataclass(frozen=True)
class Outliers(Stage[OutlierPlan]):
    """The stage for updates in the order of their pieces (`Pieces.gather`), with these regions."""

    regions: Regions
    contracting: bool = False

    def price(self, rest: Float32, bits: float) -> tuple[float, float]:
        """Return `theta` and the error of `rest` at `bits` bits.

        One more bit would reduce the error by `2 ln 2 theta`.
        """
        if bits <= 0:
            return math.inf, math.inf
        histograms = _histograms(rest, self.regions.bounds)
        plan = self._search(histograms, bits, np.ones(self.regions.sizes.size))
        return plan.step**2 / 12, plan.error

    def plan(self, rest: Float32, bits: float, rng: np.random.Generator) -> OutlierPlan:
        """Decide which entries to send as outliers.

        The bits of outliers are estimated at first, then learned from trials. Clusters of zeros may halve these bits,
        so sparse regions get a second chance. Trials use separate randomness: a choice that depended on the dither or
        on the rounding of the message would bias the decoded update.
        """
        histograms = _histograms(rest, self.regions.bounds)
        costs = np.ones(self.regions.sizes.size)
        accepted = self._nothing()
        for attempt in range(_ATTEMPTS):
            plan = self._search(histograms, bits, costs)
            if attempt == 0 and not plan.bits.any():
                costs = np.where(histograms[0].sum(axis=1) < _SPARSE * self.regions.sizes, _CLUSTERED, 1.0)
                plan = self._search(histograms, bits, costs)
            if not plan.bits.any():
                return plan
            found = self._find(plan, rest, rng)
            dither = rng.random(sum(region.places.size for region in found), dtype=np.float32)
            used = write_outliers(found, plan.step, dither)[1]
            excess = float(np.sum(used - plan.bits))
            tolerated = max(_ACCURACY * bits, 64)
            if excess < tolerated:
                accepted = plan
            if abs(excess) < tolerated:
                break
            costs = np.where(plan.bits > 0, costs * used / np.maximum(plan.bits, 1), costs)
        return accepted

    def encode(self, plan: OutlierPlan, rest: Float32, key: SharedKey, rng: np.random.Generator) -> bytes:
        if not plan.bits.any():
            return b""
        found = self._find(plan, rest, rng)
        for entries, region in zip(self._entries(rest), found, strict=True):
            entries[... if region.rounded else region.places] = 0
        dither = shared_dither(sum(region.places.size for region in found), key)
        return write_outliers(found, plan.step, dither)[0]

    def decode(self, content: bytes, key: SharedKey, out: Float32) -> None:
        read_outliers(content, self.regions, key, out)

    def _nothing(self) -> OutlierPlan:
        """Return the plan without outliers."""
        count = self.regions.sizes.size
        return OutlierPlan(np.full(count, NOTHING), np.zeros(count, dtype=np.bool_), 1.0, np.zeros(count), 0.0)

    def _entries(self, rest: Float32) -> list[Float32]:
        """Return the entries of each region."""
        return [rest[start:end] for start, end in pairwise(self.regions.bounds.tolist())]

    def _find(self, plan: OutlierPlan, rest: Float32, rng: np.random.Generator) -> list[RegionOutliers]:
        """Return the outliers of each region; entries are rounded anew in each call."""
        seed = int(rng.integers(1, 1 << 31))
        found = []
        choices = zip(self._entries(rest), plan.thresholds.tolist(), plan.rounded.tolist(), strict=True)
        for number, (entries, threshold, rounded) in enumerate(choices):
            places, values = _extract(entries, threshold, edge_of(threshold), rounded, seed + number)
            found.append(RegionOutliers(threshold, rounded, places, values))
        return found

    def _search(self, table: Float64, bits: float, costs: Float64) -> OutlierPlan:
        """Return the best plan for `bits` bits if a region's outliers take `costs` times their estimated bits."""
        sizes = self.regions.sizes
        if bits <= 0 or not table[0, :, _SMALLEST:].any():
            return self._nothing()
        choices, tried = self._choices(table)
        low, high = choices.extremes()
        best = np.empty(sizes.size, dtype=np.int64)
        apart = np.empty(sizes.size)
        for _ in range(_SEARCH_STEPS):
            theta = math.sqrt(low * high)
            low, high = (theta, high) if _choose(choices, theta, costs, best, apart)[0] > bits else (low, theta)
        error = _choose(choices, high, costs, best, apart)[1]
        thresholds = np.where(best > 0, tried[best % tried.size], NOTHING)
        return OutlierPlan(thresholds, best >= tried.size, math.sqrt(12 * high), apart, error)

    def price_curve(self, rest: Float32) -> "PriceCurve":
        """Return the bits that this stage and the next would take for `rest`, as a function of the price of a bit."""
        table = _histograms(rest, self.regions.bounds)
        return PriceCurve(self._choices(table)[0] if table[0, :, _SMALLEST:].any() else None)

    def _choices(self, table: Float64) -> tuple["Choices", Int64]:
        """Return the options of all regions, and the bins of all thresholds."""
        top = int(np.flatnonzero(table[0].any(axis=0))[-1])
        tried = np.arange(top + 1, max(top + 1 - _TRIED, _SMALLEST), -1)
        above = np.cumsum(table[:, :, ::-1], axis=2)[:, :, ::-1]
        above = np.pad(above, ((0, 0), (0, 0), (0, 1)))[:, :, tried]
        below = np.maximum(table.sum(axis=2)[:, :, None] - above, 0)
        edges = (tried << MANTISSA).astype(np.int32).view(np.float32).astype(np.float64)
        return Choices(self.regions.sizes, above, below, edges, self.contracting), tried


@kernel
def _histograms(gathered: Float32, bounds: Int64) -> Float64:
    """Return the number of entries, the sum of their magnitudes and the sum of their squares, by region and bin."""
    table = np.zeros((3, bounds.size - 1, _BINS))
    for region in range(bounds.size - 1):
        for i in range(bounds[region], bounds[region + 1]):
            magnitude = abs(gathered[i])
            if magnitude > 0:
                number = _bin(magnitude)
                table[0, region, number] += 1
                table[1, region, number] += np.float64(magnitude)
                table[2, region, number] += np.float64(magnitude) * np.float64(magnitude)
    return table


@kernel
def _bin(magnitude: Float32) -> int:
    return int(np.float32(magnitude).view(np.int32)) >> MANTISSA


class Choices(NamedTuple):
    """The options of every region, two per threshold.

    Thresholds are edges of bins; the first one is above all entries. With the first option, entries below the threshold
    are coded by the next stage; with the second, they are rounded at random.
    """

    sizes: Int64
    above: Float64  # [number, sum or sum of squares; region; edge] of the entries from the edge on
    below: Float64
    edges: Float64
    contracting: bool  # whether the rest is coded with error `n s^2 / 4^r`

    def extremes(self) -> tuple[float, float]:
        """Return a `theta` at which everything is sent, and a `theta` at which nothing is sent."""
        square = float(self.below[2].max())
        finest = (float(self.edges[0]) / _MOST_STEPS) ** 2 / 12
        return max(_EXTREMES[0] * square / int(self.sizes.sum()), finest), _EXTREMES[1] * square


class PriceCurve(NamedTuple):
    """The bits of a vector as a function of the price of a bit. For a vector of zeros, `choices` is None."""

    choices: Choices | None

    def bits_at(self, theta: float) -> float:
        """Return an estimate of the best number of bits at a price of `2 ln 2 theta` per bit."""
        if self.choices is None:
            return 0.0
        regions = self.choices.sizes.size
        best = np.empty(regions, dtype=np.int64)
        return _choose(self.choices, theta, np.ones(regions), best, np.empty(regions))[0]


def common_price(curves: Sequence[PriceCurve], bits: float) -> float:
    """Return the `theta` at which several vectors take `bits` bits together: one price of a bit for all of them."""
    extremes = [curve.choices.extremes() for curve in curves if curve.choices is not None]
    if not extremes:
        return 1.0
    low = min(lowest for lowest, _ in extremes)
    high = max(highest for _, highest in extremes)
    for _ in range(_COMMON_STEPS):
        theta = math.sqrt(low * high)
        used = sum(curve.bits_at(theta) for curve in curves)
        low, high = (theta, high) if used > bits else (low, theta)
    return high


@kernel
def _choose(choices: Choices, theta: float, costs: Float64, best: Int64, best_apart: Float64) -> tuple[float, float]:
    """Set the best choice and the outliers' bits of each region at price `theta`; return the total bits and error."""
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
            coded = size * math.log2(1 + best_excess(rest / (size * theta), choices.contracting)) / 2
            error = rest * relative_error(rest / (size * theta), choices.contracting) if rest > 0 else 0.0
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
def _bits_apart(size: float, count: float, magnitudes: float) -> float:
    """Return the bits of the gaps, signs and magnitudes of `count` outliers; `magnitudes` is their sum, in steps."""
    if count == 0:
        return 0.0
    some = max(count, 1.0)
    return count * (geometric_bits(size / some - 1) + 1 + geometric_bits(magnitudes / some)) + 48


@kernel
def _extract(x: Float32, threshold: int, edge: np.float32, rounded: bool, seed: int) -> tuple[Int64, Float32]:
    """Return the places and the values of the outliers.

    Rounding uses Marsaglia's xorshift generator (2003): an array of random numbers from NumPy would take as much memory
    as the update.
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
