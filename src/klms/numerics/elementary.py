"""Exponentials, logarithms and reductions written out in basic arithmetic.

Under Numba they vectorise, unlike calls to the C library. They consist of additions, multiplications and divisions in a
fixed order, so that compiled code, plain Python and every IEEE 754 machine compute the same bits.
"""

import math

import numpy as np

from klms.numerics.jit import Float32, Float64, Int32, UInt16, kernel

LN_2 = math.log(2.0)

_52 = np.uint64(52)
_BITS_OF_1 = np.uint64(1023 << 52)
_BITS_OF_2_52 = np.uint64(1075 << 52)  # an integer n < 2^52 in the fraction bits makes the float 2^52 + n
_EXPONENT_BIAS = 2.0**52 + 1023
# The distance from the fraction bits of sqrt(2) to the next octave: adding it moves larger mantissas there.
_TO_NEXT_OCTAVE = np.uint64((1 << 52) - int((math.sqrt(2.0) - 1.0) * (1 << 52)))

_SMALLEST_EXPONENT = -44.0  # e^-44 is 8e-20; anything less likely is never drawn
_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10 = (1.0 / math.factorial(n) for n in range(2, 11))


@kernel
def take_exponentials(values: Float64, factor: float, out: Float64) -> None:
    """Compute `out = exp(factor * values)` for `factor * values <= 0`; results below e^-44 become 0.

    A Taylor series of 1/64 of the argument, followed by six squarings. The relative error of the series is below 1e-9.
    """
    for k in range(values.size):
        x = values[k] * factor
        possible = x > _SMALLEST_EXPONENT
        x = x * 0.015625 if possible else 0.0
        high = _E6 + x * (_E7 + x * (_E8 + x * (_E9 + x * _E10)))
        y = 1.0 + x * (1.0 + x * (_E2 + x * (_E3 + x * (_E4 + x * (_E5 + x * high)))))
        y = y * y
        y = y * y
        y = y * y
        y = y * y
        y = y * y
        out[k] = y * y if possible else 0.0


@kernel
def take_logarithms(values: Float64, scratch: Float64) -> None:
    """Replace positive normal numbers by their logarithms, with a relative error below 1e-12.

    `values = 2^e m` with `m` in `[sqrt(1/2), sqrt(2)]`, and `log m = 2 artanh(s)`, `s = (m - 1) / (m + 1)`.
    """
    bits = values.view(np.uint64)
    exponents = scratch.view(np.uint64)
    for k in range(values.size):
        exponent = (bits[k] + _TO_NEXT_OCTAVE) >> _52
        exponents[k] = exponent | _BITS_OF_2_52
        bits[k] = bits[k] + _BITS_OF_1 - (exponent << _52)
    for k in range(values.size):
        s = (values[k] - 1.0) / (values[k] + 1.0)
        z = s * s
        series = 1.0 / 9.0 + z * (1.0 / 11.0 + z * (1.0 / 13.0 + z * (1.0 / 15.0)))
        series = 1.0 + z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * series)))
        values[k] = (scratch[k] - _EXPONENT_BIAS) * LN_2 + 2.0 * s * series


@kernel
def subtract_largest(values: Float64) -> float:
    """Subtract the maximum from all values, and return the maximum. There must be 2, 4, 8, ... values.

    Four running maxima let the loop vectorise.
    """
    a = c = values[0]
    b = d = values[values.size - 1]
    for k in range(0, values.size - 3, 4):
        a = values[k] if values[k] > a else a
        b = values[k + 1] if values[k + 1] > b else b
        c = values[k + 2] if values[k + 2] > c else c
        d = values[k + 3] if values[k + 3] > d else d
    top = max(max(a, b), max(c, d))
    for k in range(values.size):
        values[k] -= top
    return float(top)


@kernel
def keep_largest(table: Float32 | Float64, largest: Float32 | Float64, row_of: Int32 | UInt16) -> None:
    """Set `largest` to the maximum of each column of a table, and `row_of` to the row of each maximum.

    The table is a vector of its rows, one after the other.
    """
    columns = largest.size
    for s in range(columns):
        largest[s] = table[s]
        row_of[s] = 0
    for n in range(1, table.size // columns):
        row = table[n * columns : (n + 1) * columns]
        for s in range(columns):
            better = row[s] > largest[s]
            largest[s] = row[s] if better else largest[s]
            row_of[s] = n if better else row_of[s]


@kernel
def total(values: Float64) -> float:
    """Return the sum, in a fixed order, of 2, 4, 8, ... values; four running sums let the loop vectorise."""
    if values.size < 4:
        return float(values[0] + values[values.size - 1])
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for k in range(0, values.size, 4):
        a += values[k]
        b += values[k + 1]
        c += values[k + 2]
        d += values[k + 3]
    return (a + b) + (c + d)
