"""Gaussian distributions.

With `y = p_mean + p_std z` the score is a parabola in `z = Q[u]`:

    log q(y)/p(y) = constant + c z + a z^2,   where a = 0 if both have the same standard deviation.

The encoder looks up the means of `z` and `z^2` over cells of words with equal top bits, in tables that fit into the
first-level cache. It uses `Q` itself only for strong coordinates, whose coefficients are so large that tails matter.
Up to `_LOOKUP_BITS` index bits, scores are added candidate by candidate. Beyond that, the encoder exploits the
linearity of candidates: a function of the top `w` bits of a word is a sum of `2^w` Walsh functions of the candidate's
index, at positions that depend on the generators alone. So each coordinate adds `2^w` numbers to a spectrum (half as
many if `a = 0`, because `z` is odd), and one fast Walsh-Hadamard transform per block turns the spectrum into scores.

Cells of 8 bits blur `z` by 0.07 % of its variance and `z^2` by 1.4 %; cells of 12 bits blur `z` by 0.003 %. The decoder
always uses the whole table.
"""

from functools import cache
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from klms.codec.blocks import Blocks
from klms.codec.candidates import SharedWords, chosen_words, coordinate_words, expand, signed
from klms.codec.distributions import Distribution, parameters
from klms.codec.selection import Batch
from klms.errors import InvalidArgument
from klms.numerics.elementary import LN_2, take_logarithms
from klms.numerics.jit import Float32, Float64, Int16, Int64, UInt16, inlined, kernel
from klms.numerics.parallel import over
from klms.numerics.philox import buffer_size
from klms.numerics.quantiles import LEVELS, normal_quantiles
from klms.numerics.walsh_hadamard import walsh_hadamard

_FINE_BITS = 12
_WALSH_BITS = 8
_LOOKUP_BITS = 8
_SMALLEST_WALSH_BLOCK = 16  # for smaller blocks the transform costs more than it saves
_STRONG_LINEAR = 1.0
_STRONG_SQUARE = 0.05


class Gaussian(Distribution):
    """Independent normal distributions with these means and standard deviations.

    As `p`, `y = mean + std * Q[u]` for a word `u`, with the quantile table `Q` of `quantiles.py`.

    >>> Gaussian([1.0], [1.0]).kl(Gaussian([0.0], [1.0])).round(4).item()
    0.7213
    """

    family = "gaussian"
    number = 3

    def __init__(self, mean: npt.ArrayLike, std: npt.ArrayLike) -> None:
        self.mean = parameters("mean", mean)
        self.d = self.mean.size
        self.std = parameters("std", np.full(self.d, std) if np.ndim(std) == 0 else std)
        if self.std.size != self.d:
            raise InvalidArgument(f"std must be a number or have {self.d} entries like mean, got {self.std.size}")
        if self.std.min() <= 0:
            raise InvalidArgument("std must be positive, even after rounding to float32")
        if float(np.abs(self.mean).max()) + 5.0 * float(self.std.max()) > float(np.finfo(np.float32).max):
            raise InvalidArgument("mean and std are so large that samples would overflow a float32")

    def _write_kl(self, p: Self, start: int, out: Float64, threads: int | None) -> None:
        _write_nats(self._paired_with(p), start, out, np.empty(out.size))
        np.divide(out, LN_2, out=out)

    def score(self, p: Self, blocks: Blocks, shared: SharedWords, batch: Batch) -> None:
        cells, terms = _encoder_tables(len(shared.generators))
        _score_blocks(blocks.bounds, self._paired_with(p), cells, terms, normal_quantiles(), shared, batch)

    def candidates(self, indices: UInt16, blocks: Blocks, shared: SharedWords, threads: int | None) -> Float32:
        sample = np.empty(self.d, dtype=np.float32)
        table = normal_quantiles()
        over(blocks.bounds, threads, _decode_blocks, indices, shared, self.mean, self.std, table, sample)
        return sample

    @property
    def fixed_point(self) -> tuple[Float32, Float32]:
        return self.mean, self.std

    def _paired_with(self, p: Self) -> "_Pair":
        return _Pair(q_mean=self.mean, q_std=self.std, p_mean=p.mean, p_std=p.std)


class _Pair(NamedTuple):
    """Parameters of two Gaussian distributions, as the kernels take them."""

    q_mean: Float32
    q_std: Float32
    p_mean: Float32
    p_std: Float32


@kernel
def _write_nats(pair: _Pair, start: int, out: Float64, scratch: Float64) -> None:
    """Write to `out` the KL, in nats, of the coordinates from `start` onwards."""
    for o in range(out.size):
        out[o] = np.float64(pair.q_std[start + o]) / np.float64(pair.p_std[start + o])
    take_logarithms(out, scratch)
    for o in range(out.size):
        i = start + o
        ratio = np.float64(pair.q_std[i]) / np.float64(pair.p_std[i])
        shift = (np.float64(pair.q_mean[i]) - np.float64(pair.p_mean[i])) / np.float64(pair.p_std[i])
        nats = 0.5 * (ratio * ratio - 1.0 + shift * shift) - out[o]
        out[o] = nats if nats > 0.0 else 0.0


class _Block(NamedTuple):
    """One block, as the scoring kernels take it: the score of a coordinate is `linear z + square z^2`."""

    linear: Float64
    square: Float64
    u: UInt16
    generators: Int16


@cache
def _encoder_tables(bits: int) -> tuple[Float64, Float64 | None]:
    """Return the means of `Q` and `Q^2` over cells of `_FINE_BITS` bits, and the Walsh spectra.

    Indices of at most `_LOOKUP_BITS` bits need no spectra; these are then None.
    """
    return _cell_means(_FINE_BITS), _walsh_terms() if bits > _LOOKUP_BITS else None


def _cell_means(bits: int) -> Float64:
    """Return the means of `Q` (row 0) and of its square (row 1) over each cell of words with equal top `bits` bits."""
    table = normal_quantiles().astype(np.float64)
    return np.stack([power.reshape(1 << bits, LEVELS >> bits).mean(axis=1) for power in (table, table**2)])


def _walsh_terms() -> Float64:
    """Return the Walsh spectra of `z` (row 0) and `z^2` (row 1) over cells of `_WALSH_BITS` bits.

    The spectrum of `z` is zero at masks with an even number of set bits, and the spectrum of `z^2` at all others.
    Column `r` of either row belongs to the mask whose upper bits are `r`, and whose lowest bit makes the parity right.
    """
    spectra = _cell_means(_WALSH_BITS)
    for row in spectra:
        walsh_hadamard(row)
    upper = np.arange(1 << (_WALSH_BITS - 1))
    parity = np.array([int(r).bit_count() % 2 for r in upper])
    return np.stack([spectra[0][2 * upper + 1 - parity], spectra[1][2 * upper + parity]]) / (1 << _WALSH_BITS)


@inlined
def _is_strong(linear: float, square: float) -> bool:
    return abs(linear) > _STRONG_LINEAR or abs(square) > _STRONG_SQUARE


@inlined
def _score_by_lookup(block: _Block, cells: Float64, expanded: Int16, scores: Float64) -> None:
    """Add the scores of all weak coordinates, candidate by candidate."""
    linear, square, u, generators = block
    mean, mean_square = cells[0], cells[1]
    for o in range(linear.size):
        if _is_strong(linear[o], square[o]):
            continue
        expand(signed(u[o]), generators, o, generators.shape[0], expanded)
        c, a = linear[o], square[o]
        if a == 0.0:
            for k in range(scores.size):
                scores[k] += c * mean[(int(expanded[k]) + 32768) >> (16 - _FINE_BITS)]
        else:
            for k in range(scores.size):
                cell = (int(expanded[k]) + 32768) >> (16 - _FINE_BITS)
                scores[k] += c * mean[cell] + a * mean_square[cell]


@inlined
def _score_by_walsh(block: _Block, terms: Float64, scores: Float64) -> None:
    """Add the spectra of all weak coordinates, and transform the sum."""
    linear, square, u, generators = block
    row = np.empty(generators.shape[0], dtype=np.int16)  # generators of one coordinate, contiguous for speed
    positions = np.empty(terms.shape[1], dtype=np.int64)
    signs = np.empty(terms.shape[1])
    lowest = 16 - _WALSH_BITS
    for o in range(linear.size):
        if _is_strong(linear[o], square[o]):
            continue
        # A mask contributes at the position whose bit j tells whether the mask's overlap with generator j is odd, with
        # a sign that tells whether the mask's overlap with U is odd. Double over the upper bits; the lowest bit keeps
        # masks odd.
        for j in range(row.size):
            row[j] = generators[j, o]
        first_position = _bit_of_all(row, lowest)
        first_sign = 1.0 - 2.0 * ((int(u[o]) >> lowest) & 1)
        positions[0] = first_position
        signs[0] = first_sign
        half = 1
        for bit in range(lowest + 1, 16):
            position = first_position ^ _bit_of_all(row, bit)
            sign = first_sign * (1.0 - 2.0 * ((int(u[o]) >> bit) & 1))
            for r in range(half):
                positions[half + r] = positions[r] ^ position
            for r in range(half):
                signs[half + r] = signs[r] * sign
            half *= 2
        for r in range(half):
            scores[positions[r]] += linear[o] * terms[0, r] * signs[r]
        if square[o] != 0.0:
            for r in range(half):
                scores[positions[r] ^ first_position] += square[o] * terms[1, r] * signs[r] * first_sign
    walsh_hadamard(scores)


@inlined
def _bit_of_all(row: Int16, bit: int) -> int:
    """Collect bit `bit` of all generators of a row in one number."""
    number = 0
    for j in range(row.size):
        number |= ((int(row[j]) >> bit) & 1) << j
    return number


@inlined
def _add_strong(block: _Block, quantiles: Float32, expanded: Int16, scores: Float64) -> None:
    linear, square, u, generators = block
    for o in range(linear.size):
        if _is_strong(linear[o], square[o]):
            expand(signed(u[o]), generators, o, generators.shape[0], expanded)
            for k in range(scores.size):
                z = np.float64(quantiles[int(expanded[k]) + 32768])
                scores[k] += z * (linear[o] + square[o] * z)


@kernel
def _score_blocks(
    bounds: Int64,
    pair: _Pair,
    cells: Float64,
    terms: Float64 | None,
    quantiles: Float32,
    shared: SharedWords,
    batch: Batch,
) -> None:
    """Score all candidates of a batch of blocks. If `terms` is None, Numba compiles no transform."""
    linear = np.empty(shared.largest)
    square = np.empty(shared.largest)
    nats = np.empty(shared.largest)
    scratch = np.empty(shared.largest)
    buffer = np.empty(buffer_size(shared.largest), dtype=np.uint64)
    expanded = np.empty(batch.scores.shape[1], dtype=np.int16)
    for m in range(batch.first, batch.first + batch.scores.shape[0]):
        start = bounds[m]
        n = bounds[m + 1] - start
        _write_nats(pair, start, nats[:n], scratch)
        kl = wanted = 0.0
        for o in range(n):
            i = start + o
            q_std = np.float64(pair.q_std[i])
            scale = np.float64(pair.p_std[i]) / q_std
            shift = (np.float64(pair.q_mean[i]) - np.float64(pair.p_mean[i])) / q_std
            linear[o] = scale * shift
            square[o] = 0.5 - 0.5 * scale * scale
            kl += nats[o]
            mean = shift / scale  # mean of z under q; its variance is 1 / scale^2
            wanted += linear[o] * mean + square[o] * (mean * mean + 1.0 / (scale * scale))
        u = coordinate_words(buffer, start, n, shared)
        window = int(shared.windows[m])
        block = _Block(linear[:n], square[:n], u, shared.signed[:, window : window + n])
        scores = batch.scores[m - batch.first]
        for k in range(scores.size):
            scores[k] = 0.0
        if terms is not None and n >= _SMALLEST_WALSH_BLOCK:
            _score_by_walsh(block, terms, scores)
        else:
            _score_by_lookup(block, cells, expanded, scores)
        _add_strong(block, quantiles, expanded, scores)
        batch.wanted[m - batch.first] = wanted
        batch.nats[m - batch.first] = kl


@kernel
def _decode_blocks(
    first: int,
    end: int,
    bounds: Int64,
    indices: UInt16,
    shared: SharedWords,
    mean: Float32,
    std: Float32,
    quantiles: Float32,
    out: Float32,
) -> None:
    """Write the chosen candidates of the blocks `first <= m < end` to `out`."""
    buffer = np.empty(buffer_size(shared.largest), dtype=np.uint64)
    for m in range(first, end):
        start = bounds[m]
        n = bounds[m + 1] - start
        u = chosen_words(buffer, m, start, n, int(indices[m]), shared)
        for o in range(n):
            # Two float32 operations, each rounded: the result is the same on every IEEE 754 machine.
            scaled = np.float32(std[start + o] * quantiles[u[o]])
            out[start + o] = np.float32(mean[start + o] + scaled)
