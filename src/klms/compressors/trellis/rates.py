"""Rates of pieces: bits per coordinate that follow from the pieces' norms, as a byte per piece and a shared remainder.

At the price of `2 ln 2 theta` per bit, a piece of `n` entries with mean square `s^2` is best coded at the rate `r` at
which `u = 4^r` solves `theta (u - 1)^2 = s^2 u`; its error is `n s^2 / (u - 1)`. For estimates that minimise the error
(`contracting`), the error is `n s^2 / u`, and the best rate has `u = s^2 / theta`, or `u = 1` if that ratio is below 1.
With one `theta` for all pieces, the sum of their errors is the smallest possible with their total number of bits.

A rate is a number `FINE coarse + fine`, where `fine` is common to all pieces of a message. If the number is at least
`LEVELS`, the piece is coded by levels with the step of index `number - LEVELS`; otherwise, by signs at
`2^((number - LEVELS) / 128)` bits per coordinate. A piece with `coarse = 0` is all zeros.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from klms.compressors.trellis import level_paths
from klms.numerics.jit import Float32, Float64, Int64, kernel

MIN_RATE, MAX_RATE = 0.0001, 8.0
FINE = 16
LEVELS = 2048
_COARSEST = 255
_SIGNS_PER_OCTAVE = 128
SIGNS_UP_TO = 0.65  # bits per coordinate; above this rate, levels have less error
_LEAST = 1e-5  # bits per coordinate
_WORTHWHILE = 16  # bits: any coded piece costs more than this; if `contracting`, pieces that get fewer are left out
_SEARCH_STEPS = 24
_LOSS = 1.25  # approximate error of a coded piece, relative to the smallest possible error


class PieceRates(NamedTuple):
    """The rates of all pieces: a coarse part for each, and the fine part that they share."""

    coarse: Int64
    fine: int

    @property
    def numbers(self) -> Int64:
        """The rate of each piece as a number; 0 if the piece is zero."""
        return np.where(self.coarse > 0, FINE * self.coarse + self.fine, 0)


@cache
def sign_rates() -> Float32:
    """Return the bits per coordinate for every number below `LEVELS`."""
    return np.exp2((np.arange(LEVELS) - LEVELS) / _SIGNS_PER_OCTAVE).astype(np.float32)


def allocate(squares: Float64, sizes: Int64, bits: float, memory: int, contracting: bool = False) -> PieceRates:
    """Return rates at which all pieces together take about `bits` bits.

    `squares` are the squared norms of the pieces, and `memory` is the memory of the levels' trellis.
    """
    some = squares > 0
    if not some.any():
        return PieceRates(np.zeros(sizes.size, dtype=np.int64), 0)
    powers = squares / sizes
    low, high = 1e-12 * float(powers.max()), 1e12 * float(powers.max())
    for _ in range(_SEARCH_STEPS):
        theta = math.sqrt(low * high)
        used = float(np.sum(sizes * _best_rates(powers / theta, contracting)))
        low, high = (theta, high) if used > bits else (low, theta)
    rates = _best_rates(powers / high, contracting)
    if contracting:
        some &= sizes * rates >= min(_WORTHWHILE, float((sizes * rates).max()))
    wanted = _numbers(rates, memory)
    tried = np.arange(FINE)
    coarse = np.clip(np.round((wanted - tried[:, None]) / FINE), 1, _COARSEST)
    excess = (np.where(some, sizes * _bits(FINE * coarse + tried[:, None], memory), 0)).sum(axis=1) - bits
    fine = int(np.argmin(np.where(excess > 0, 3 * excess, -excess)))  # too much is worse than too little
    return PieceRates(np.where(some, coarse[fine], 0).astype(np.int64), fine)


def _best_rates(ratios: Float64, contracting: bool) -> Float64:
    """Return the best rates for pieces of mean square `ratio theta`."""
    excess = np.maximum(ratios - 1, 0) if contracting else (ratios + np.sqrt(ratios * (ratios + 4))) / 2
    return np.clip(np.log2(1 + excess) / 2, _LEAST, MAX_RATE)


@kernel
def best_excess(ratio: float, contracting: bool) -> float:
    """Return `4^r - 1` for the best rate `r` of entries with mean square `ratio theta`.

    `_LOSS` accounts for the loss of the code.
    """
    ratio *= _LOSS
    return max(ratio - 1, 0.0) if contracting else (ratio + math.sqrt(ratio * (ratio + 4))) / 2


@kernel
def relative_error(ratio: float, contracting: bool) -> float:
    """Return the error of entries of mean square `ratio theta` at the best rate, relative to their squared norm."""
    excess = best_excess(max(ratio, 1e-60), contracting)
    return min(_LOSS / (1 + excess), 1.0) if contracting else _LOSS / excess


def _numbers(rates: Float64, memory: int) -> Float64:
    indices, measured = level_paths.MEASURED_STEPS, level_paths.MEASURED_RATES[memory]
    by_signs = LEVELS + _SIGNS_PER_OCTAVE * np.log2(rates)
    return np.where(rates < SIGNS_UP_TO, by_signs, LEVELS + np.interp(rates, measured, indices))


def _bits(numbers: Float64, memory: int) -> Float64:
    indices, measured = level_paths.MEASURED_STEPS, level_paths.MEASURED_RATES[memory]
    by_signs = np.exp2((numbers - LEVELS) / _SIGNS_PER_OCTAVE)
    return np.where(numbers < LEVELS, by_signs, np.interp(numbers - LEVELS, indices, measured))
