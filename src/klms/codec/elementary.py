"""Exponential, logarithm and friends, written out.

They vectorise, which the C library's do not under Numba, and they are made of additions, multiplications and divisions
in a fixed order, so that compiled code, plain Python and every IEEE machine compute the same bits.
"""

import math

import numpy as np
import numpy.typing as npt

from klms.codec._jit import kernel

Float64 = npt.NDArray[np.float64]

LN_2 = math.log(2.0)

_52 = np.uint64(52)
_BITS_OF_1 = np.uint64(1023 << 52)
_BITS_OF_2_52 = np.uint64(1075 << 52)  # a number below 2^52 in its fraction is that number, as a float, plus 2^52
_EXPONENT_BIAS = 2.0**52 + 1023
# What lies between the fraction bits of sqrt(2) and the next octave: adding it carries mantissas above sqrt(2) over.
_TO_NEXT_OCTAVE = np.uint64((1 << 52) - int((math.sqrt(2.0) - 1.0) * (1 << 52)))

_SMALLEST_EXPONENT = -44.0  # e^-44 is 8e-20: what is less likely than that will not be drawn
_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10 = (1.0 / math.factorial(n) for n in range(2, 11))


@kernel
def take_exponentials(values: Float64, factor: float, out: Float64) -> None:
    """`out = exp(factor * values)` for `factor * values <= 0`; what is below e^-44 counts as 0.

    A Taylor series of a 64th of the argument, good to 1e-9 of the result, then six squarings.
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
    """`values = log(values)` in place, for positive normal numbers; good to 1e-12.

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
def largest(values: Float64) -> float:
    """The maximum; four at a time, if there are that many (their number is a power of two)."""
    if values.size < 4:
        return float(max(values[0], values[values.size - 1]))
    a, b, c, d = values[0], values[1], values[2], values[3]
    for k in range(0, values.size, 4):
        a = values[k] if values[k] > a else a
        b = values[k + 1] if values[k + 1] > b else b
        c = values[k + 2] if values[k + 2] > c else c
        d = values[k + 3] if values[k + 3] > d else d
    return float(max(max(a, b), max(c, d)))


@kernel
def total(values: Float64) -> float:
    """The sum; four at a time, if there are that many (their number is a power of two)."""
    if values.size < 4:
        return float(values[0] + values[values.size - 1])
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for k in range(0, values.size, 4):
        a += values[k]
        b += values[k + 1]
        c += values[k + 2]
        d += values[k + 3]
    return (a + b) + (c + d)
