"""Normal coordinates at about 0.7 bits each and more: a path through a trellis of two quantisers, entropy-coded.

Trellis-coded quantisation (Marcellin and Fischer, 1990) with entropy coding, in the form of dependent quantisation
(Schwarz et al., 2019). Two quantisers share the grid of multiples of `step`: quantiser 0 has the even ones, quantiser 1
the odd ones and zero. A state machine of `2^memory` states decides which quantiser codes a coordinate, and the parity
of the chosen index `k` determines the next state; the machines are Ungerboeck's codes (1982). The encoder takes the
path that minimises `error + LAGRANGE step^2 bits` (Viterbi). The indices are coded by range asymmetric numeral systems
(Duda, 2013), with probabilities that follow from `step`, because the coordinates are known to be normal.

A piece is cut into `LANES` equal lanes, coded in parallel: their paths and their entropy coders are independent, which
lets the encoder use vector instructions, and the decoder overlap eight dependent chains. All the pieces of a run
share one stream of 16-bit words: the coders' final states, then the words in the order in which the decoder reads them.
"""

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from klms.errors import CorruptMessage
from klms.numerics.jit import Float32, Int16, Int64, UInt8, UInt16, UInt32, UInt64, kernel
from klms.numerics.quantiles import LEVELS, normal_quantiles

LANES = 8
STATES = 4 * LANES
"""Bytes of the states of the entropy coders, at the start of the words of a run."""
MEMORIES = (2, 3, 4, 5, 6, 7, 8)
STEP_INDICES = 2048
"""Number of steps. Step `index` is `2^(1 - index / 256)`: from 2, below 0.6 bits per coordinate, to about 1/128 and 8
bits per coordinate."""
LAGRANGE = 0.25
MEASURED_STEPS = (64, 72, 80, 88, 96, 112, 128, 160, 208, 256, 384, 512, 768, 1024, 1536, 2047)
MEASURED_RATES = {
    3: (0.463, 0.56, 0.649, 0.723, 0.772, 0.836, 0.875, 0.953, 1.108, 1.27, 1.721, 2.184, 3.123, 4.088, 6.062, 8.059),
    5: (0.535, 0.634, 0.693, 0.729, 0.756, 0.793, 0.826, 0.904, 1.075, 1.251, 1.726, 2.183, 3.125, 4.088, 6.062, 8.058),
    8: (0.596, 0.649, 0.691, 0.707, 0.721, 0.761, 0.8, 0.888, 1.068, 1.248, 1.718, 2.188, 3.125, 4.09, 6.062, 8.06),
}
"""Bits per normal coordinate by memory, at the steps with the indices `MEASURED_STEPS`, for the encoder's plans."""
_FEEDBACK = (0o5, 0o13, 0o23, 0o45, 0o103, 0o235, 0o515)  # parity-check polynomials for amplitude modulation, by memory
_FORWARD = (0o2, 0o04, 0o04, 0o10, 0o024, 0o126, 0o362)
_LARGEST = 6.0  # end of the grid; one normal coordinate in 500 million lies beyond it
_CELLS = 4096
_STEPS = 512  # of a path before it is traced back, a compromise between storage and the loss at its start
_STATE = 1 << 16  # the states of the entropy coders are at least this, and below 2^32
_PADDING = LANES + 1  # words after the last one that the decoder may read before it notices that there are no more
_IMPOSSIBLE = np.float32(-1e30)


class Machine(NamedTuple):
    """The state machine, and its butterflies: states `j` and `j + half` lead to states `2j` and `2j + 1`."""

    following: UInt16  # [parity, state]: the next state
    quantiser: UInt8  # of each state
    packed: UInt16  # [parity, 2 state + quantiser]: `2 state + quantiser` of the next state, for the decoder
    odd: UInt8  # of each butterfly: parity of the index on the way from `j` to `2j` and from `j + half` to `2j + 1`


class Code(NamedTuple):
    """The tables that follow from a step size. Axis 0 is the quantiser; index `k` is at position `k + largest`."""

    largest: int  # the largest index
    levels: Float32
    spans: UInt32  # numbers below 2^precision that stand for an index: the first of them times 2^16, plus their count
    precision: int  # probabilities are multiples of `2^-precision`
    symbols: UInt16  # [quantiser, number below 2^precision]: place of the index


class Search(NamedTuple):
    """The encoder's tables for choosing a path: the cheapest index for coordinates in a cell, its level and its cost.

    All are indexed by `[cell, 2 parity + quantiser]`.
    """

    nearest: Int16
    levels: Float32
    costs: Float32  # half of `LAGRANGE step^2 bits`


@cache
def machine(memory: int) -> Machine:
    """Return Ungerboeck's code with `2^memory` states."""
    feedback, forward = _FEEDBACK[memory - 2], _FORWARD[memory - 2]
    registers = range(2 << memory)
    parity = np.array([(register & feedback).bit_count() & 1 for register in registers], dtype=np.uint8)
    quantiser = np.array([(register & forward).bit_count() & 1 for register in registers], dtype=np.uint8)
    states = np.arange(1 << memory)
    register = np.where(parity[2 * states] == [[0], [1]], 2 * states, 2 * states + 1)
    following = (register & (states.size - 1)).astype(np.uint16)
    own = quantiser[2 * states]
    packed = np.repeat(2 * following + own[following], 2, axis=1).astype(np.uint16)
    return Machine(following, own, packed, parity[2 * states[: states.size // 2]])


def step_of(index: int) -> float:
    """Return the step with this index."""
    return float(np.float32(2.0 ** (1 - index / 256)))


@lru_cache(maxsize=128)
def code(index: int) -> Code:
    """Return the code for a step; both sides compute the same integers from the table of normal quantiles."""
    step = step_of(index)
    largest = int(_LARGEST / (2 * step)) + 1
    k = np.arange(-largest, largest + 1)
    grid = np.stack([2 * k, 2 * k - np.sign(k)])
    precision = min(15, max(13, largest.bit_length() + 7))
    counts = np.stack([_counts(grid[0, largest:], step, 0, precision), _counts(grid[1, largest:], step, 1, precision)])
    starts = np.cumsum(counts, axis=1) - counts
    symbols = np.stack([np.repeat(np.arange(k.size, dtype=np.uint16), row) for row in counts])
    levels = (grid * step).astype(np.float32)
    return Code(largest, levels, (starts << 16 | counts).astype(np.uint32), precision, symbols)


@lru_cache(maxsize=128)
def search(index: int) -> Search:
    """Return the encoder's tables for a step."""
    table, step = code(index), step_of(index)
    bits = table.precision - np.log2(table.spans & 0xFFFF)
    costs = (LAGRANGE / 2 * step * step * bits).astype(np.float32)
    nearest = np.empty((_CELLS, 4), dtype=np.int16)
    _find_nearest(nearest, table.levels, costs)
    options = np.arange(4) & 1, nearest + table.largest
    return Search(nearest, table.levels[options], costs[options])


def _counts(grid: Int64, step: float, quantiser: int, precision: int) -> Int64:
    """Return how many of `2^precision` equally likely normal values a path assigns to each level, by a fitted formula.

    Between two levels the path prefers the cheaper one, the one closer to zero, especially if the step is coarse. The
    shifts of the borders, in steps, were fitted to the frequencies of paths of 8 states on normal coordinates.
    """
    coarse = min(step, 1.4)
    shifts = np.full(grid.size - 1, 0.7 * coarse * coarse)
    shifts[0] = 0.4 * coarse**3 - 0.05 if quantiser == 0 else 0.35 * max(0.0, coarse - 0.95) - 0.27
    borders = (grid[1:] + grid[:-1]) / 2 + shifts
    above = np.searchsorted(normal_quantiles(), (borders * step).astype(np.float32)) - LEVELS // 2
    spare = (1 << precision) - (2 * grid.size - 1)  # every level keeps at least one, so that it can be coded
    one_side = 1 + np.diff(np.append(above, LEVELS // 2)) * spare // LEVELS
    middle = (1 << precision) - 2 * one_side.sum()
    return np.concatenate([one_side[::-1], [middle], one_side])


@kernel
def _find_nearest(nearest: Int16, levels: Float32, costs: Float32) -> None:
    middle = levels.shape[1] // 2
    spacing = np.float64(levels[0, middle + 1])
    for cell in range(_CELLS):
        x = np.float32((cell + 0.5) * (2 * _LARGEST / _CELLS) - _LARGEST)
        around = middle + int(np.floor(np.float64(x) / spacing + 0.5))
        for parity in range(2):
            for quantiser in range(2):
                best = _IMPOSSIBLE
                for place in range(max(around - 3, 0), min(around + 4, 2 * middle + 1)):
                    if (place - middle) & 1 == parity:
                        gain = _gain(x, levels[quantiser, place], costs[quantiser, place])
                        if gain > best:
                            best = gain
                            nearest[cell, 2 * parity + quantiser] = place - middle


@kernel
def _gain(x: np.float32, level: np.float32, cost: np.float32) -> np.float32:
    """Return half of the amount by which a level improves a path's objective over level 0, the level without cost."""
    return level * (x - np.float32(0.5) * level) - cost


@kernel
def _cell(x: np.float32) -> int:
    place = int((x + np.float32(_LARGEST)) * np.float32(_CELLS / (2 * _LARGEST)))
    return min(max(place, 0), _CELLS - 1)


@kernel
def choose_levels(x: Float32, table: Search, states: Machine, indices: Int16) -> None:
    """Choose the indices of a piece with coordinates of variance 1."""
    lane = x.size // LANES
    for start in range(0, lane, _STEPS):
        _choose(x, lane, start, min(lane, start + _STEPS), table, states, indices)


@kernel
def _choose(x: Float32, lane: int, start: int, end: int, table: Search, states: Machine, indices: Int16) -> None:
    """Find the best paths of all lanes from `start` to `end`."""
    half = states.odd.size
    metric = np.full((2 * half, LANES), _IMPOSSIBLE, dtype=np.float32)
    metric[0] = 0
    later = np.empty((2 * half, LANES), dtype=np.float32)
    from_upper = np.empty((end - start, 2 * half, LANES), dtype=np.uint8)
    gains = np.empty((4, LANES), dtype=np.float32)
    for i in range(start, end):
        for m in range(LANES):
            value = x[m * lane + i]
            cell = _cell(value)
            for option in range(4):
                gains[option, m] = _gain(value, table.levels[cell, option], table.costs[cell, option])
        choice = from_upper[i - start]
        for j in range(half):
            # The polynomials ensure that the two ways into each state of a butterfly differ in parity.
            straight = gains[2 * states.odd[j] + states.quantiser[j]]
            crossed = gains[2 * (1 - states.odd[j]) + states.quantiser[j]]
            lower, upper = metric[j], metric[j + half]
            even, odd = later[2 * j], later[2 * j + 1]
            even_choice, odd_choice = choice[2 * j], choice[2 * j + 1]
            for m in range(LANES):
                a, b = lower[m] + straight[m], upper[m] + crossed[m]
                c, d = lower[m] + crossed[m], upper[m] + straight[m]
                even[m] = b if b > a else a
                even_choice[m] = b > a
                odd[m] = d if d > c else c
                odd_choice[m] = d > c
        metric, later = later, metric
    for m in range(LANES):
        state = 0
        for s in range(2 * half):
            if metric[s, m] > metric[state, m]:
                state = s
        for i in range(end - 1, start - 1, -1):
            before = (state >> 1) + half * int(from_upper[i - start, state, m])
            odd_index = int(states.following[1, before] == state)
            option = 2 * odd_index + int(states.quantiser[before])
            indices[m * lane + i] = table.nearest[_cell(x[m * lane + i]), option]
            state = before


class Coders(NamedTuple):
    """The entropy coders of all lanes and the words that they share."""

    states: UInt64  # one per lane
    words: UInt16
    place: Int64  # one number: where in `words` the next word is


def new_coders(coordinates: int) -> Coders:
    """Return coders with room for the words of this number of coordinates.

    The encoder fills the words from their end.
    """
    room = coordinates + 2 * LANES
    return Coders(np.full(LANES, _STATE, dtype=np.uint64), np.empty(room, dtype=np.uint16), np.array([room]))


@kernel
def write_levels(indices: Int16, table: Code, states: Machine, coders: Coders, out: Float32) -> None:
    """Code the indices of a piece in reverse, and set `out` to their levels. Pieces must also come in reverse order."""
    lane = indices.size // LANES
    quantisers = np.empty(indices.size, dtype=np.uint8)
    for m in range(LANES):
        state = 0
        for i in range(m * lane, (m + 1) * lane):
            if (i - m * lane) % _STEPS == 0:
                state = 0
            quantisers[i] = states.quantiser[state]
            out[i] = table.levels[quantisers[i], int(indices[i]) + table.largest]
            state = int(states.following[int(indices[i]) & 1, state])
    place = coders.place[0]
    low, half, precision = np.uint32(0xFFFF), np.uint32(16), np.uint32(table.precision)
    for i in range(lane - 1, -1, -1):
        for m in range(LANES - 1, -1, -1):
            span = table.spans[quantisers[m * lane + i], int(indices[m * lane + i]) + table.largest]
            count = span & low
            number = np.uint32(coders.states[m])
            if number >> np.uint32(32 - table.precision) >= count:
                place -= 1
                coders.words[place] = number & low
                number = number >> half
            turns = number // count
            coders.states[m] = (turns << precision) + (number - turns * count) + (span >> half)
    coders.place[0] = place


def finished(coders: Coders) -> UInt16:
    """Return all the words of a run: the states of the coders, then the words that they wrote."""
    return np.concatenate([coders.states.astype("<u4").view("<u2"), coders.words[int(coders.place[0]) :]])


def opened(words: UInt16) -> Coders:
    """Return coders that read the untrusted words of a run."""
    if words.size < 2 * LANES:
        raise CorruptMessage("the levels are cut off")
    states = np.ascontiguousarray(words[: 2 * LANES]).view("<u4").astype(np.uint64)
    return Coders(states, np.append(words, np.zeros(_PADDING, dtype=np.uint16)), np.array([2 * LANES]))


@kernel
def read_levels(table: Code, states: Machine, coders: Coders, scale: float, out: Float32) -> None:
    """Set `out` to the levels of a piece, times `scale`. Words beyond the end are read as zero."""
    lane = out.size // LANES
    own, walks = np.empty(LANES, dtype=np.uint32), np.zeros(LANES, dtype=np.uint16)
    for m in range(LANES):
        own[m] = coders.states[m]
    # Unsigned numbers throughout, so that Numba need not check whether an index counts from the end.
    one, low, half = np.uint16(1), np.uint32(0xFFFF), np.uint32(16)
    mask, precision = np.uint32((1 << table.precision) - 1), np.uint32(table.precision)
    parity, factor = np.uint16(table.largest & 1), np.float32(scale)
    place, end = np.uint64(coders.place[0]), np.uint64(coders.words.size - _PADDING)
    for i in range(lane):
        if i % _STEPS == 0:
            walks[:] = 0
        for m in range(LANES):
            quantiser = walks[m] & one
            slot = own[m] & mask
            symbol = table.symbols[quantiser, slot]
            span = table.spans[quantiser, symbol]
            own[m] = (span & low) * (own[m] >> precision) + (slot - (span >> half))
            out[m * lane + i] = table.levels[quantiser, symbol] * factor
            walks[m] = states.packed[(symbol & one) ^ parity, walks[m]]
        if place > end:
            place = end + np.uint64(1)  # never `end` again, so that `check_end` notices
        # No branch, because the processor could not predict it; a separate loop, so that only it waits for `place`.
        for m in range(LANES):
            word = np.uint32(coders.words[place])
            short = own[m] < np.uint32(_STATE)
            own[m] = own[m] << half | word if short else own[m]
            place += np.uint64(short)
    for m in range(LANES):
        coders.states[m] = own[m]
    coders.place[0] = place


def check_end(coders: Coders) -> None:
    """Raise unless the coders have read all the words and are back in the encoder's initial states."""
    if int(coders.place[0]) != coders.words.size - _PADDING or (coders.states != _STATE).any():
        raise CorruptMessage("the levels do not decode")
