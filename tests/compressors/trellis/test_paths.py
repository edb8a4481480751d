"""Pieces, their rates, and their paths through the two trellises."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klms.compressors.layout import Layout
from klms.compressors.trellis import level_paths, sign_paths
from klms.compressors.trellis.pieces import Pieces
from klms.compressors.trellis.rates import FINE, LEVELS, allocate, sign_rates
from tests.support.vectors import KEY, normal


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3000), max_size=12), st.integers(8, 14), st.integers(0, 6))
def test_pieces_cover_every_entry_once(sizes, smallest, more):
    layout = Layout(tuple(map(str, range(len(sizes)))), tuple((size,) for size in sizes))
    pieces = Pieces(layout, 1 << smallest, 1 << (smallest + more))
    x = np.arange(1, layout.d + 1, dtype=np.float32)
    gathered = pieces.gather(x)
    assert np.count_nonzero(gathered) == layout.d
    np.testing.assert_array_equal(pieces.scatter(gathered), x)
    lengths = np.diff(pieces.bounds)
    assert all(length & (length - 1) == 0 and length >= 256 for length in lengths.tolist())
    assert set(pieces.regions.bounds.tolist()) <= set(pieces.bounds.tolist())
    assert gathered.size < 2 * layout.d + 256 * (len(sizes) + 1)
    pieces.rotate(gathered, KEY)
    pieces.rotate(gathered, KEY, backward=True)
    np.testing.assert_allclose(pieces.scatter(gathered), x, rtol=1e-3, atol=1e-2 * layout.d)


def test_rates_are_where_the_slopes_of_the_error_are_equal():
    sizes = np.array([1 << 16, 1 << 14, 1 << 16, 1 << 12])
    powers = np.array([1.0, 100.0, 0.01, 0.0])
    coarse, fine = allocate(powers * sizes, sizes, 0.3 * sizes.sum(), 5)
    assert coarse[3] == 0
    assert (FINE * coarse[:3] + fine < LEVELS).tolist() == [True, False, True]
    rates = sign_rates()[(FINE * coarse + fine)[[0, 2]]].astype(float)
    slopes = powers[[0, 2]] * 4**rates / (4**rates - 1) ** 2
    assert slopes[0] == pytest.approx(slopes[1], rel=0.15)  # rates are rounded to a sixteenth of an octave


def test_the_tables_of_the_format_are_pinned():
    """Both sides compute them; were one entry another, messages would decode to something else."""
    numbers = [sign_rates().tobytes(), sign_paths.generators().tobytes()]
    for index in (0, 100, 500, 1000, level_paths.STEP_INDICES - 1):
        table = level_paths.code(index)
        counts = table.spans & np.uint32(0xFFFF)
        assert (counts.sum(axis=1) == 1 << table.precision).all()
        assert counts.min() >= 1
        numbers += [counts.tobytes(), table.levels.tobytes()]
    assert zlib.crc32(b"".join(numbers)) == PINNED


PINNED = 3447550643


@pytest.mark.parametrize("memory", level_paths.MEASURED_RATES)
def test_the_rates_of_levels_are_as_measured(memory):
    x, indices, out = normal(1 << 15), np.empty(1 << 15, dtype=np.int16), np.empty(1 << 15, dtype=np.float32)
    for index, rate in zip(level_paths.MEASURED_STEPS, level_paths.MEASURED_RATES[memory], strict=True):
        coders, machine = level_paths.new_coders(x.size), level_paths.machine(memory)
        level_paths.choose_levels(x, level_paths.search(index), machine, indices)
        level_paths.write_levels(indices, level_paths.code(index), machine, coders, out)
        assert 16 * (level_paths.finished(coders).size - 16) / x.size == pytest.approx(rate, rel=0.06)


@pytest.mark.parametrize("memory", level_paths.MEMORIES)
def test_a_machine_is_a_permutation_with_two_ways_into_every_state(memory):
    machine = level_paths.machine(memory)
    arrivals = np.bincount(machine.following.ravel(), minlength=1 << memory)
    assert (arrivals == 2).all()
    assert (machine.following[0] != machine.following[1]).all()


@pytest.mark.parametrize("memory", [2, 3])
def test_levels_take_the_best_path(memory):
    """Against all paths of a lane of 10 coordinates, by brute force."""
    x, machine = normal(80, 4), level_paths.machine(memory)
    table = level_paths.code(150)
    indices, out = np.empty(80, dtype=np.int16), np.empty(80, dtype=np.float32)
    level_paths.choose_levels(x, level_paths.search(150), machine, indices)
    level_paths.write_levels(indices, table, machine, level_paths.new_coders(80), out)

    bits = table.precision - np.log2(table.spans & 0xFFFF)
    costs = level_paths.LAGRANGE / 2 * level_paths.step_of(150) ** 2 * bits

    def gain(value, k, quantiser):
        level = table.levels[quantiser, k + table.largest]
        return float(level * (value - level / 2) - costs[quantiser, k + table.largest])

    for lane in range(8):
        values = x[10 * lane : 10 * lane + 10]
        best = {0: 0.0}
        for value in values:
            later = {}
            for state, total in best.items():
                quantiser = int(machine.quantiser[state])
                for k in range(-table.largest, table.largest + 1):
                    reached = int(machine.following[k & 1, state])
                    later[reached] = max(later.get(reached, -1e9), total + gain(value, k, quantiser))
            best = later
        state, total = 0, 0.0
        for value, k in zip(values, indices[10 * lane : 10 * lane + 10].tolist(), strict=True):
            total += gain(value, k, int(machine.quantiser[state]))
            state = int(machine.following[k & 1, state])
        assert total == pytest.approx(max(best.values()), abs=0.02)  # cells round coordinates to 0.003


@settings(max_examples=25, deadline=None)
@given(st.integers(0, level_paths.STEP_INDICES - 1), st.integers(0, 9), st.sampled_from(level_paths.MEMORIES))
def test_levels_are_read_as_they_were_written(index, seed, memory):
    x = np.concatenate([normal(504, seed), [9.0, -9.0, 0.0, 5.99, -6.01, 1e6, -1e6, 0.1]]).astype(np.float32)
    table, machine = level_paths.code(index), level_paths.machine(memory)
    indices, out, read = np.empty(512, np.int16), np.empty(512, np.float32), np.empty(512, np.float32)
    level_paths.choose_levels(x, level_paths.search(index), machine, indices)
    coders = level_paths.new_coders(512)
    level_paths.write_levels(indices, table, machine, coders, out)
    opened = level_paths.opened(level_paths.finished(coders))
    level_paths.read_levels(table, machine, opened, 2.0, read)
    level_paths.check_end(opened)
    np.testing.assert_array_equal(read, 2 * out)


@pytest.mark.parametrize("memory", [0, 2, 4])
def test_signs_take_the_best_path(memory):
    """Against all paths of three blocks, by brute force."""
    x = normal(8 * 60, 7)
    indices, out = np.empty(24, dtype=np.uint8), np.empty(x.size, dtype=np.float32)
    sign_paths.choose_signs(x, memory, sign_paths.generators(), indices)
    signs = sign_paths.signs(memory)
    sign_paths.restore_signs(indices, memory, sign_paths.generators(), signs, 1.0, out)
    generators = sign_paths.generators()[: x.size].astype(int)
    for lane in range(8):
        places = np.arange(60 * lane, 60 * lane + 60)
        best = {0: 0.0}  # by the last bits
        for block in range(3):
            at, later = places[20 * block : 20 * block + 20], {}
            for bits, total in best.items():
                for k in range(16):
                    c = (bits << 4 | k) % (16 << memory)
                    score = total + float(x[at] @ signs[generators[at] & c])
                    state = c % (1 << memory)
                    later[state] = max(later.get(state, -1e9), score)
            best = later
        assert float(x[places] @ out[places]) == pytest.approx(max(best.values()), rel=1e-4)
