"""The low-rank part of an update's matrices, sent by its factors: gradients of a layer span few directions.

What is sent of a matrix is a sum of products of a column and a row (`low_rank_coder.py`); the rest of the update is
coded as ever, so that an unbiased code of the rest makes the whole unbiased.

Which products pay is a question of price, as for outliers: with `2 ln 2 theta` per bit, a product that takes `B` bits
and removes `E` of the squared norm is sent if `gain E > 2 ln 2 theta B`. `gain` is the error of the rest per squared
norm of it, at the rate that is best at that price. Steps `D` have `gain D^2 / 12 = theta`. Once products are taken out,
the rest is smaller and a bit costs less, perhaps by orders of magnitude: so the price is followed until the one that
the products were made for is the one that they lead to.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from klms.compressors.envelope import log_number, log_scale
from klms.compressors.layout import Layout
from klms.compressors.low_rank_coder import Matrix, Products, add_product, add_products, matrices, square, write
from klms.compressors.outliers import geometric_bits
from klms.numerics.jit import Float32, kernel
from klms.numerics.parallel import each

_ITERATIONS = 2  # of the power method, from the largest row
_TRIALS = 6
_EXTRACTIONS = 3
_AGREEMENT = 0.25  # of the logarithms of two prices
_FINEST = 1 << 19  # steps of the largest number: half of what may be read
_LANES = 16  # partial sums of an inner product, which a processor adds up at once


class Price(NamedTuple):
    """What a bit costs, in units of squared error, and what a unit of the squared norm of each matrix does."""

    theta: float
    error: float
    """Squared error to expect of the whole."""
    gains: list[float]


def take(
    update: Float32, layout: Layout, bits: float, price_of: Callable[[Float32, float], Price], threads: int | None
) -> tuple[bytes, Float32]:
    """Return the section that holds the low-rank part, empty if none pays, and the update without it.

    `price_of` tells what a bit costs when a vector is coded with so many bits, and which error to expect.
    """
    which = matrices(layout)
    best = Trial(price_of(update, bits) if which else Price(0.0, 0.0, []), b"", [])
    for _ in range(_EXTRACTIONS):
        price = best.price
        if not 0 < price.theta < math.inf:
            break
        limits = [price.theta / gain for gain in price.gains]
        factors = each(
            lambda one: _factors(one[0].of(update), one[0].most_products, one[1]),
            list(zip(which, limits, strict=True)),
            threads,
        )
        for trial in _trials(update, which, factors, bits, price, price_of):
            best = min(best, trial, key=lambda one: one.price.error)
        if best.price.theta > price.theta / 4:  # otherwise more products pay than were looked for
            break
    return best.section, _without(update, which, best.products) if best.section else update


class Trial(NamedTuple):
    """A low-rank part, and the price of a bit for the rest. The rest is made again when needed, to save memory."""

    price: Price
    section: bytes
    products: list[Products]


def _trials(
    update: Float32,
    which: list[Matrix],
    factors: list[tuple[Float32, Float32]],
    bits: float,
    price: Price,
    price_of: Callable[[Float32, float], Price],
) -> Iterator[Trial]:
    """Yield low-rank parts until one is made for about the price that it leads to."""
    low, high, theta = 0.0, math.inf, price.theta
    for _ in range(_TRIALS):
        chosen = [_quantise(*pair, theta / gain) for pair, gain in zip(factors, price.gains, strict=True)]
        section = write(chosen) if any(products.step for products in chosen) else b""
        after = math.inf
        if 8 * len(section) < bits:
            price = price_of(_without(update, which, chosen) if section else update, bits - 8 * len(section))
            yield Trial(price, section, chosen)
            after = price.theta
            if abs(math.log(after / theta)) < _AGREEMENT:
                break
        low, high = (theta, high) if after > theta else (low, theta)
        if low < after < high:
            theta = after
        else:
            theta = math.sqrt(low * high) if 0 < low < high < math.inf else theta * (2 if after > theta else 0.5)


def _without(update: Float32, which: list[Matrix], chosen: list[Products]) -> Float32:
    rest = update.copy()
    for matrix, products in zip(which, chosen, strict=True):
        if products.step:
            add_products(products.columns, products.rows, -log_scale(products.step), matrix.of(rest))
    return rest


def _quantise(columns: Float32, rows: Float32, theta: float) -> Products:
    """Return the products that pay, in steps that suit the price."""
    largest = max(float(np.abs(factor).max(initial=0)) for factor in (columns, rows))
    number = log_number(max(math.sqrt(12 * theta), largest / _FINEST))
    step = np.float32(log_scale(number))
    pays = [_pays(column, row, step, theta) for column, row in zip(columns, rows, strict=True)]
    chosen = [np.rint(factor[pays] / step).astype(np.int64) for factor in (columns, rows)]
    return Products(number if any(pays) else 0, *chosen)


@kernel
def _factors(matrix: Float32, most: int, theta: float) -> tuple[Float32, Float32]:
    """Return columns `a` and rows `b`, whose products `a b^T / |a|` are the largest ones, as far as they may pay."""
    rest = matrix.copy()
    rows, columns = rest.shape
    left, right = np.zeros((most, rows), dtype=np.float32), np.zeros((most, columns), dtype=np.float32)
    step = np.float32(math.sqrt(12 * theta))
    for count in range(most):
        direction = rest[_largest_row(rest)].copy()
        column = left[count]
        for _ in range(_ITERATIONS):
            _times(rest, direction, column)
            _normalise(column)
            _times_transposed(rest, column, direction)
            _normalise(direction)
        _times(rest, direction, column)
        right[count] = 0
        norm = np.float32(math.sqrt(square(column)))
        if not norm > 0:
            return left[:count], right[:count]
        _times_transposed(rest, column / norm, right[count])
        if not _pays(column, right[count], step, theta / 2):  # the price may fall once the rest has become smaller
            return left[:count], right[:count]
        add_product(-column / norm, right[count], rest)
    return left, right


@kernel
def _pays(column: Float32, row: Float32, step: np.float32, theta: float) -> bool:
    """Return whether a product removes more than its bits cost, in steps of this size."""
    aa = aq = qq = bb = bq = 0.0
    counts = np.zeros((2, 2))
    for i in range(column.size):
        q = np.float64(np.rint(column[i] / step)) * np.float64(step)
        aa += np.float64(column[i]) * np.float64(column[i])
        aq += np.float64(column[i]) * q
        qq += q * q
        counts[0, 0] += q != 0
        counts[0, 1] += abs(q)
    for i in range(row.size):
        q = np.float64(np.rint(row[i] / step)) * np.float64(step)
        bq += np.float64(row[i]) * q
        bb += q * q
        counts[1, 0] += q != 0
        counts[1, 1] += abs(q)
    if qq == 0 or bb == 0:
        return False
    removed = 2 * aq * bq / math.sqrt(aa * qq) - bb
    bits = 24.0
    for which, size in ((0, column.size), (1, row.size)):
        some = counts[which, 0]
        share = some / size
        if share < 1:
            bits -= size * (share * math.log2(share) + (1 - share) * math.log2(1 - share))
        bits += some * (1 + geometric_bits(counts[which, 1] / np.float64(step) / some - 1))
    return removed > 2 * math.log(2) * theta * bits


@kernel
def _largest_row(matrix: Float32) -> int:
    best, largest = 0, -1.0
    for i in range(matrix.shape[0]):
        found = square(matrix[i])
        if found > largest:
            best, largest = i, found
    return best


@kernel
def _normalise(vector: Float32) -> None:
    norm = np.float32(math.sqrt(square(vector)))
    if norm > 0:
        for i in range(vector.size):
            vector[i] /= norm


@kernel
def _times(matrix: Float32, direction: Float32, out: Float32) -> None:
    lanes = np.empty(_LANES, dtype=np.float32)
    whole = direction.size // _LANES * _LANES
    for i in range(matrix.shape[0]):
        row = matrix[i]
        lanes[:] = 0
        for j in range(0, whole, _LANES):
            for k in range(_LANES):
                lanes[k] += row[j + k] * direction[j + k]
        for j in range(whole, direction.size):
            lanes[j - whole] += row[j] * direction[j]
        out[i] = lanes.sum()


@kernel
def _times_transposed(matrix: Float32, column: Float32, out: Float32) -> None:
    out[:] = 0
    for i in range(matrix.shape[0]):
        row, factor = matrix[i], column[i]
        for j in range(out.size):
            out[j] += factor * row[j]
