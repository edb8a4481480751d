"""Rates of pieces: bits per coordinate that follow the pieces' norms, as numbers that fit a byte and a common rest.

With `n` entries of mean square `s^2` in a piece, the error `sum n s^2 / (4^r - 1)` under `sum n r = bits` is least
where `u = 4^r` solves `theta (u - 1)^2 = s^2 u` with one `theta` for all pieces. For estimates of least error, whose
error is `sum n s^2 / 4^r`, it is `u = s^2 / theta`, or 1 if that is less.

A rate is a number `FINE coarse + fine`, where `fine` is common to all pieces of a message. From `LEVELS` on, the piece
is coded by levels with the step of index `number - LEVELS`; below, by signs at `2^((number - LEVELS) / 128)` bits; at
`coarse = 0` it is all zeros.
"""

import math
from functools import cache

import numpy as np

from klms.compressors import level_paths
from klms.numerics.jit import Float32, Float64, Int64

MIN_RATE, MAX_RATE = 0.0001, 8.0
FINE = 16
LEVELS = 2048
_COARSEST = 255
_SIGNS_PER_OCTAVE = 128
SIGNS_UP_TO = 0.65  # bits; from there on levels have less error
_LEAST = 1e-5  # bits
_WORTHWHILE = 16  # bits: a piece that gets less takes more all the same, and is better left out if it may be
_SEARCH_STEPS = 24
LOSS = 1.25
"""Error of a coded piece over the least possible one, about."""


@cache
def sign_rates() -> Float32:
    """Return the bits per coordinate of every number below `LEVELS`."""
    return np.exp2((np.arange(LEVELS) - LEVELS) / _SIGNS_PER_OCTAVE).astype(np.float32)


def allocate(squares: Float64, sizes: Int64, bits: float, memory: int, contracting: bool = False) -> tuple[Int64, int]:
    """Return the coarse part of every piece's rate, and the fine part of all, so that all take about `bits` bits.

    `squares` are the squared norms of the pieces, and `memory` is that of the levels' trellis.
    """
    some = squares > 0
    if not some.any():
        return np.zeros(sizes.size, dtype=np.int64), 0
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
    return np.where(some, coarse[fine], 0).astype(np.int64), fine


def _best_rates(ratios: Float64, contracting: bool) -> Float64:
    """Return the rates at which `(u - 1)^2 = ratio u` for `u = 4^rate`, or `u = ratio`."""
    excess = np.maximum(ratios - 1, 0) if contracting else (ratios + np.sqrt(ratios * (ratios + 4))) / 2
    return np.clip(np.log2(1 + excess) / 2, _LEAST, MAX_RATE)


def _numbers(rates: Float64, memory: int) -> Float64:
    indices, measured = level_paths.MEASURED_STEPS, level_paths.MEASURED_RATES[memory]
    by_signs = LEVELS + _SIGNS_PER_OCTAVE * np.log2(rates)
    return np.where(rates < SIGNS_UP_TO, by_signs, LEVELS + np.interp(rates, measured, indices))


def _bits(numbers: Float64, memory: int) -> Float64:
    indices, measured = level_paths.MEASURED_STEPS, level_paths.MEASURED_RATES[memory]
    by_signs = np.exp2((numbers - LEVELS) / _SIGNS_PER_OCTAVE)
    return np.where(numbers < LEVELS, by_signs, np.interp(numbers - LEVELS, indices, measured))
