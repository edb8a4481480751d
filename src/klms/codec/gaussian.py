"""Scoring, encoding and decoding blocks of normals.

With `y = p_mean + p_std z` the score is a parabola in `z = Q[u]`:

    log q(y)/p(y) = constant + c z + a z^2,   a = 0 where both have the same spread.

The encoder reads `z` from the means of `Q` over cells of equal top bits, which fit the first-level cache; only where a
coordinate pulls strongly, and could pull into a tail, from `Q` itself. Up to `_LOOKUP_BITS` it adds candidate by
candidate. Above that it uses that candidates are linear: a function
of the top `w` bits of a word is a sum of `2^w` Walsh functions of the candidate's index, at places that depend on the
generators alone. So a coordinate adds `2^w` numbers to a spectrum (half of them, if `a = 0`: `z` is odd), and one fast
Walsh-Hadamard transform a block turns the spectrum into the scores of all candidates.

Cells of 8 bits blur `z` by 0.07 % of its variance and `z^2` by 1.4 %, cells of 12 bits `z` by 0.003 %. The decoder
always uses the whole table.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

from klms.codec._jit import inlined, kernel
from klms.codec.candidates import chosen_words, expand
from klms.codec.distributions import gaussian_nats
from klms.codec.philox import U_STREAM, buffer_size, words
from klms.codec.quantiles import LEVELS, normal_quantiles
from klms.codec.selection import select

_FINE_BITS = 12
_WALSH_BITS = 8
_LOOKUP_BITS = 8
_SMALLEST_WALSH_BLOCK = 16  # below that the transform costs more than it saves
_STRONG_LINEAR = 1.0
_STRONG_SQUARE = 0.05

Float64 = npt.NDArray[np.float64]


@cache
def fine_cells() -> Float64:
    """Row 0: the mean of `Q` over each cell of `_FINE_BITS` bits; row 1: the mean of its square."""
    return _cell_means(_FINE_BITS)


@cache
def walsh_terms() -> Float64:
    """The Walsh spectra of `z` (row 0) and `z^2` (row 1) over cells of `_WALSH_BITS` bits.

    `z` is odd, so it has only the masks with an odd number of bits, and `z^2` only the others. Column `r` of both is
    the mask whose upper bits are `r`; its lowest bit makes it odd or even.
    """
    spectra = _cell_means(_WALSH_BITS)
    for row in spectra:
        walsh_hadamard(row)
    upper = np.arange(1 << (_WALSH_BITS - 1))
    parity = np.array([int(r).bit_count() % 2 for r in upper])
    odd = spectra[0][2 * upper + 1 - parity]
    even = spectra[1][2 * upper + parity]
    return np.stack([odd, even]) / (1 << _WALSH_BITS)


def _cell_means(bits: int) -> Float64:
    table = normal_quantiles().astype(np.float64)
    return np.stack([power.reshape(1 << bits, LEVELS >> bits).mean(axis=1) for power in (table, table**2)])


@kernel
def walsh_hadamard(values: Float64) -> None:
    """In place: `values[k] = sum over s of values[s] (-1)^popcount(s & k)`."""
    half = 1
    while half < values.size:
        for group in range(0, values.size, 2 * half):
            upper = values[group : group + half]
            lower = values[group + half : group + 2 * half]
            for k in range(half):
                a = upper[k]
                b = lower[k]
                upper[k] = a + b
                lower[k] = a - b
        half *= 2


@kernel
def _score_by_lookup(
    n: int,
    linear: Float64,
    square: Float64,
    u: npt.NDArray[np.uint16],
    window: int,
    generators: npt.NDArray[np.int16],
    cells: Float64,
    expanded: npt.NDArray[np.int16],
    scores: Float64,
) -> None:
    """Add every coordinate's scores, candidate by candidate."""
    mean = cells[0]
    mean_square = cells[1]
    for o in range(n):
        if _is_strong(linear[o], square[o]):
            continue
        expand(np.int16(int(u[o]) - 32768), generators, window + o, generators.shape[1], expanded)
        c = linear[o]
        a = square[o]
        if a == 0.0:
            for k in range(scores.size):
                scores[k] += c * mean[(int(expanded[k]) + 32768) >> (16 - _FINE_BITS)]
        else:
            for k in range(scores.size):
                cell = (int(expanded[k]) + 32768) >> (16 - _FINE_BITS)
                scores[k] += c * mean[cell] + a * mean_square[cell]


@inlined
def _is_strong(linear: float, square: float) -> bool:
    return abs(linear) > _STRONG_LINEAR or abs(square) > _STRONG_SQUARE


@kernel
def _add_strong(
    n: int,
    linear: Float64,
    square: Float64,
    u: npt.NDArray[np.uint16],
    window: int,
    generators: npt.NDArray[np.int16],
    quantiles: npt.NDArray[np.float32],
    expanded: npt.NDArray[np.int16],
    scores: Float64,
) -> None:
    """Add the scores of the coordinates that pull strongly, exactly."""
    for o in range(n):
        if _is_strong(linear[o], square[o]):
            expand(np.int16(int(u[o]) - 32768), generators, window + o, generators.shape[1], expanded)
            for k in range(scores.size):
                z = np.float64(quantiles[int(expanded[k]) + 32768])
                scores[k] += z * (linear[o] + square[o] * z)


@kernel
def _score_by_walsh(
    n: int,
    linear: Float64,
    square: Float64,
    u: npt.NDArray[np.uint16],
    window: int,
    generators: npt.NDArray[np.int16],
    terms: Float64,
    places: npt.NDArray[np.int64],
    signs: Float64,
    scores: Float64,
) -> None:
    """Add every coordinate's spectrum, and transform."""
    bits = generators.shape[1]
    lowest = 16 - _WALSH_BITS
    for o in range(n):
        if _is_strong(linear[o], square[o]):
            continue
        # A mask adds to the place whose bit j says whether the mask has odd overlap with generator j, with the sign
        # that says whether it has odd overlap with U. Doubling over the upper bits, the lowest keeping masks odd.
        first_place = _bit_of_all(generators, window + o, bits, lowest)
        first_sign = 1.0 - 2.0 * ((int(u[o]) >> lowest) & 1)
        places[0] = first_place
        signs[0] = first_sign
        half = 1
        for bit in range(lowest + 1, 16):
            place = first_place ^ _bit_of_all(generators, window + o, bits, bit)
            sign = first_sign * (1.0 - 2.0 * ((int(u[o]) >> bit) & 1))
            for r in range(half):
                places[half + r] = places[r] ^ place
            for r in range(half):
                signs[half + r] = signs[r] * sign
            half *= 2
        for r in range(half):
            scores[places[r]] += linear[o] * terms[0, r] * signs[r]
        if square[o] != 0.0:
            for r in range(half):
                scores[places[r] ^ first_place] += square[o] * terms[1, r] * signs[r] * first_sign
    walsh_hadamard(scores)


@inlined
def _bit_of_all(generators: npt.NDArray[np.int16], row: int, bits: int, bit: int) -> int:
    """Bit `bit` of every generator of a row, as a number."""
    number = 0
    for j in range(bits):
        number |= ((int(generators[row, j]) >> bit) & 1) << j
    return number


@kernel
def encode_blocks(
    first: int,
    end: int,
    bounds: npt.NDArray[np.int64],
    q_mean: npt.NDArray[np.float32],
    q_std: npt.NDArray[np.float32],
    p_mean: npt.NDArray[np.float32],
    p_std: npt.NDArray[np.float32],
    cells: Float64,
    terms: Float64,
    quantiles: npt.NDArray[np.float32],
    largest: int,
    windows: npt.NDArray[np.uint16],
    generators: npt.NDArray[np.int16],
    key: npt.NDArray[np.uint64],
    rule: int,
    uniforms: Float64,
    indices: npt.NDArray[np.uint16],
    kls: Float64,
) -> None:
    """Choose `indices[m]` and note `kls[m]` (nats) for the blocks `first <= m < end`."""
    bits = generators.shape[1]
    linear = np.empty(largest)
    square = np.empty(largest)
    nats = np.empty(largest)
    scratch = np.empty(largest)
    buffer = np.empty(buffer_size(largest), dtype=np.uint64)
    expanded = np.empty(1 << bits, dtype=np.int16)
    places = np.empty(terms.shape[1], dtype=np.int64)
    signs = np.empty(terms.shape[1])
    scores = np.empty(1 << bits)
    weights = np.empty(1 << bits)
    for m in range(first, end):
        start = bounds[m]
        n = bounds[m + 1] - start
        window = int(windows[m])
        gaussian_nats(q_mean, q_std, p_mean, p_std, start, nats[:n], scratch)
        kl = 0.0
        wanted = 0.0
        for o in range(n):
            i = start + o
            q_s = np.float64(q_std[i])
            p_s = np.float64(p_std[i])
            scale = p_s / q_s
            shift = (np.float64(q_mean[i]) - np.float64(p_mean[i])) / q_s
            linear[o] = scale * shift
            square[o] = 0.5 - 0.5 * scale * scale
            kl += nats[o]
            mean = shift / scale  # of z under q, whose variance is 1 / scale^2
            wanted += linear[o] * mean + square[o] * (mean * mean + 1.0 / (scale * scale))
        u = words(buffer, start, n, U_STREAM, key)
        scores[:] = 0.0
        if bits <= _LOOKUP_BITS or n < _SMALLEST_WALSH_BLOCK:
            _score_by_lookup(n, linear, square, u, window, generators, cells, expanded, scores)
        else:
            _score_by_walsh(n, linear, square, u, window, generators, terms, places, signs, scores)
        _add_strong(n, linear, square, u, window, generators, quantiles, expanded, scores)
        indices[m] = select(scores, rule, uniforms[m], wanted, weights)
        kls[m] = kl


@kernel
def decode_blocks(
    first: int,
    end: int,
    bounds: npt.NDArray[np.int64],
    indices: npt.NDArray[np.uint16],
    mean: npt.NDArray[np.float32],
    std: npt.NDArray[np.float32],
    quantiles: npt.NDArray[np.float32],
    largest: int,
    windows: npt.NDArray[np.uint16],
    generators_by_bit: npt.NDArray[np.uint16],
    key: npt.NDArray[np.uint64],
    out: npt.NDArray[np.float32],
) -> None:
    """Write the chosen candidates of the blocks `first <= m < end` to `out`."""
    buffer = np.empty(buffer_size(largest), dtype=np.uint64)
    for m in range(first, end):
        start = bounds[m]
        n = bounds[m + 1] - start
        u = chosen_words(buffer, start, n, int(windows[m]), int(indices[m]), generators_by_bit, key)
        for o in range(n):
            # Two float32 operations, each rounded: the same on every IEEE machine.
            scaled = np.float32(std[start + o] * quantiles[u[o]])
            out[start + o] = np.float32(mean[start + o] + scaled)
