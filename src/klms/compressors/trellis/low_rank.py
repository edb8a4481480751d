"""Stage 1: the low-rank part of an update's matrices, sent as its factors. Gradients of a layer span few directions.

A matrix is sent as a sum of products of a column and a row (`low_rank_coder.py`); the rest of the update is left to the
other stages, so that an unbiased code of the rest makes the whole unbiased.

The price of a bit decides which products are worth their bits, as for outliers: at `2 ln 2 theta` per bit, a product
that takes `B` bits and removes `E` of the squared norm is sent if `gain E > 2 ln 2 theta B`. `gain` is the squared
error of the rest divided by the squared norm of the rest, if the rest is coded at the best rate for that price. The
step `D` satisfies `gain D^2 / 12 = theta`. Once products are taken out, the rest is smaller and a bit costs less,
perhaps by orders of magnitude. The search therefore continues until the price at which the products were chosen is the
price that results from them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from klms.codec import SharedKey
from klms.compressors.trellis.adaptive_bits import geometric_bits
from klms.compressors.trellis.low_rank_coder import (
    Matrix,
    Products,
    add_product,
    add_products,
    matrices,
    read_products,
    write_products,
)
from klms.compressors.trellis.outliers import Outliers
from klms.compressors.trellis.payload import log_number, log_scale, section
from klms.compressors.trellis.pieces import Pieces, product
from klms.compressors.trellis.rates import relative_error
from klms.compressors.trellis.stage import Stage
from klms.numerics.jit import Float32, kernel
from klms.numerics.parallel import each

_ITERATIONS = 2  # of the power method, from the largest row
_TRIALS = 6
_EXTRACTIONS = 3
_AGREEMENT = 0.25  # difference between the logarithms of two prices that count as equal
_FINEST = 1 << 19  # steps in the largest number: half of what a reader accepts
_LANES = 16  # partial sums of an inner product, which a processor adds up at once


class Price(NamedTuple):
    """The marginal price of a bit for the rest of the vector."""

    theta: float
    error: float
    """Expected squared error of the whole vector."""
    gains: list[float]
    """The marginal price of a unit of squared norm of each matrix."""


class LowRankPlan(NamedTuple):
    """The products of each matrix, the bytes of all products, and the price of a bit for the rest."""

    content: bytes = b""
    products: tuple[Products, ...] = ()
    price: Price = Price(0.0, 0.0, [])


@dataclass(frozen=True)
class LowRank(Stage[LowRankPlan]):
    """The low-rank stage for updates in the order of these pieces.

    The next stage, `outliers`, determines the price of a bit.
    """

    pieces: Pieces
    outliers: Outliers

    @cached_property
    def matrices(self) -> list[Matrix]:
        return matrices(self.pieces)

    def plan(self, rest: Float32, bits: float, rng: np.random.Generator) -> LowRankPlan:
        if not self.matrices:
            return LowRankPlan()
        best = LowRankPlan(price=self._price(rest, bits))
        for _ in range(_EXTRACTIONS):
            price = best.price
            if not 0 < price.theta < math.inf:
                break
            factors = self._factors(rest, price)
            for trial in self._trials(rest, factors, bits, price):
                best = min(best, trial, key=lambda plan: plan.price.error)
            if best.price.theta > price.theta / 4:  # otherwise, more products may pay than were sought
                break
        return best

    def encode(self, plan: LowRankPlan, rest: Float32, key: SharedKey, rng: np.random.Generator) -> bytes:
        self.remove(plan, rest)
        return plan.content

    def remove(self, plan: LowRankPlan, rest: Float32) -> None:
        """Subtract the planned products from `rest`."""
        if plan.content:
            self._remove(plan.products, rest)

    def decode(self, content: bytes, key: SharedKey, out: Float32) -> None:
        read_products(content, self.matrices, out)

    def _price(self, rest: Float32, bits: float) -> Price:
        """Return the price of a bit if the stages after this one have `bits` bits for `rest`."""
        theta, error = self.outliers.price(rest, bits)
        squares = [float(np.mean(np.square(matrix.of(rest)))) for matrix in self.matrices]
        return Price(theta, error, [relative_error(square / theta, self.outliers.contracting) for square in squares])

    def _factors(self, rest: Float32, price: Price) -> list[tuple[Float32, Float32]]:
        """Return, for each matrix, the columns and rows whose products may be worth their bits at this price."""
        limits = [price.theta / gain for gain in price.gains]
        work = list(zip(self.matrices, limits, strict=True))
        return each(lambda one: _factors(one[0].of(rest), one[0].most_products, one[1]), work, self.pieces.threads)

    def _trials(
        self, rest: Float32, factors: list[tuple[Float32, Float32]], bits: float, price: Price
    ) -> Iterator[LowRankPlan]:
        """Yield plans until the price at which a plan was made is about the price that results from it."""
        low, high, theta = 0.0, math.inf, price.theta
        for _ in range(_TRIALS):
            products = tuple(_quantise(*pair, theta / gain) for pair, gain in zip(factors, price.gains, strict=True))
            content = write_products(products)
            after = math.inf
            left = bits - 8 * len(section(content))
            if left > 0:
                price = self._price(self._without(products, rest), left)
                yield LowRankPlan(content, products, price)
                after = price.theta
                if abs(math.log(after / theta)) < _AGREEMENT:
                    break
            low, high = (theta, high) if after > theta else (low, theta)
            if low < after < high:
                theta = after
            elif 0 < low < high < math.inf:
                theta = math.sqrt(low * high)
            else:
                theta *= 2 if after > theta else 0.5

    def _without(self, chosen: tuple[Products, ...], rest: Float32) -> Float32:
        """Return a copy of `rest` minus the chosen products."""
        left = rest.copy()
        self._remove(chosen, left)
        return left

    def _remove(self, chosen: tuple[Products, ...], rest: Float32) -> None:
        for matrix, products in zip(self.matrices, chosen, strict=True):
            if products.step:
                add_products(products.columns, products.rows, -log_scale(products.step), matrix.of(rest))


def _quantise(columns: Float32, rows: Float32, theta: float) -> Products:
    """Return the products that are worth their bits, quantised with a step that suits the price."""
    largest = max(float(np.abs(factor).max(initial=0)) for factor in (columns, rows))
    number = log_number(max(math.sqrt(12 * theta), largest / _FINEST))
    step = np.float32(log_scale(number))
    pays = [_pays(column, row, step, theta) for column, row in zip(columns, rows, strict=True)]
    chosen = [np.rint(factor[pays] / step).astype(np.int64) for factor in (columns, rows)]
    return Products(number if any(pays) else 0, *chosen)


@kernel
def _factors(matrix: Float32, most: int, theta: float) -> tuple[Float32, Float32]:
    """Return columns `a` and rows `b` of the largest products `a b^T / |a|`: those that may be worth their bits."""
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
        norm = np.float32(math.sqrt(product(column, column)))
        if not norm > 0:
            return left[:count], right[:count]
        _times_transposed(rest, column / norm, right[count])
        if not _pays(column, right[count], step, theta / 2):  # the price may fall once the rest has become smaller
            return left[:count], right[:count]
        add_product(-column / norm, right[count], rest)
    return left, right


@kernel
def _pays(column: Float32, row: Float32, step: np.float32, theta: float) -> bool:
    """Return whether a product, quantised with this step, removes more than its bits cost."""
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
        found = product(matrix[i], matrix[i])
        if found > largest:
            best, largest = i, found
    return best


@kernel
def _normalise(vector: Float32) -> None:
    norm = np.float32(math.sqrt(product(vector, vector)))
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
