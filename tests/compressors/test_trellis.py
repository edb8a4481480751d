"""The dense scheme: errors beside EDEN's and the limit, rates, outliers, trellises, and bytes from strangers."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klms import CorruptMessage, KLMSError, SharedKey
from klms.compressors import level_paths, outlier_coder, outliers, sign_paths
from klms.compressors.eden import Eden
from klms.compressors.envelope import read_section
from klms.compressors.layout import Layout
from klms.compressors.piece_rates import FINE, LEVELS, allocate, sign_rates
from klms.compressors.pieces import Pieces, Ranges
from klms.compressors.trellis import Trellis
from klms.errors import InvalidArgument
from klms.numerics.quantiles import normal_quantiles
from tests.support.messages import resealed, sealed
from tests.support.mutation import mutate

KEY = SharedKey(5, 1, 0)


def flat(d: int) -> Layout:
    return Layout(("all",), ((d,),))


def normal(d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(d).astype(np.float32)


def through(scheme, x, number=0):
    key = replace(KEY, client=number)
    message = scheme.encode(x, {}, key=key, rng=np.random.default_rng([9, number]))
    return message, scheme.decode(message, {}, key=key).vector


def relative_error(x, y):
    return float(np.sum((y.astype(float) - x) ** 2) / np.sum(x.astype(float) ** 2))


# --- errors and bits


@pytest.mark.parametrize(
    ("effort", "bounds"),
    [
        ("fast", {0.02: 0.7, 0.1: 0.7, 0.5: 0.76, 1.0: 0.8, 2.0: 0.66, 4.0: 0.55}),
        ("balanced", {0.02: 0.6, 0.1: 0.6, 0.5: 0.63, 1.0: 0.76, 2.0: 0.62, 4.0: 0.52}),
        ("best", {0.02: 0.57, 0.1: 0.56, 0.5: 0.58, 1.0: 0.71, 2.0: 0.6, 4.0: 0.5}),
    ],
)
def test_errors_are_below_edens_at_every_rate(effort, bounds):
    """On normal vectors, where EDEN is at its best. The bounds allow for the noise of a vector of 2^17 entries."""
    x = normal(1 << 17)
    for rate, bound in bounds.items():
        message, y = through(Trellis(flat(x.size), rate, effort), x)
        bits = 8 * len(message) / x.size
        assert 0.97 * rate < bits < 1.015 * rate
        error = relative_error(x, y)
        assert 0.97 / (4**bits - 1) < error < bound * relative_error(x, through(Eden(x.size, bits), x)[1])


def test_more_effort_means_less_error():
    x = normal(1 << 16)
    for rate in (0.1, 0.5, 1.5):
        errors = [
            relative_error(x, through(Trellis(flat(x.size), rate, e), x)[1]) for e in ("fast", "balanced", "best")
        ]
        assert errors == sorted(errors, reverse=True)


def test_rates_follow_the_norms_of_the_arrays():
    """One array has a thousand times the power of the other: a flat rotation would spread its error over both."""
    layout = Layout(("small", "large"), ((1 << 15,), (1 << 15,)))
    x = np.concatenate([normal(1 << 15), 32 * normal(1 << 15, 1)])
    ours, together = through(Trellis(layout, 0.5), x)[1], through(Trellis(flat(x.size), 0.5), x)[1]
    assert relative_error(x, ours) < 0.7 * relative_error(x, together)


def test_sparse_and_heavy_tailed_updates_cost_a_fraction():
    """A rotation gives every zero a share of the error; entries that are sent apart do not."""
    rng = np.random.default_rng(0)
    x = (rng.standard_t(2, 1 << 16) * (rng.random(1 << 16) < 0.1)).astype(np.float32)
    for rate, bound in ((0.5, 0.3), (1.0, 0.03), (2.0, 0.001)):
        message, y = through(Trellis(flat(x.size), rate), x)
        assert 8 * len(message) / x.size < 1.02 * rate
        assert relative_error(x, y) < bound * relative_error(x, through(Eden(x.size, rate), x)[1])


@pytest.mark.parametrize("effort", ["fast", "balanced", "best"])
@pytest.mark.parametrize("rate", [0.3, 2])
def test_few_entries_that_changed_arrive_almost_exactly(rate, effort):
    """Fine-tuning changes a small part of a model, which then has far more bits than it can use."""
    layout = Layout(("body", "head", "bias"), ((300, 1000), (10, 256), (10,)))
    x = np.zeros(layout.d, dtype=np.float32)
    x[layout.parts[1]].reshape(10, 256)[:, :5] = np.random.default_rng(0).standard_normal((10, 5))
    scheme = Trellis(layout, rate, effort)
    message = scheme.encode(x, {}, key=SharedKey(1, 2, 3), rng=np.random.default_rng(1))
    decoded = scheme.decode(message, {}, key=SharedKey(1, 2, 3)).vector
    assert np.sum((decoded - x) ** 2) < 1e-9 * np.sum(x**2)
    assert len(message) < 1000


def test_clusters_of_entries_cost_less_than_scattered_ones():
    """An embedding's update has whole rows of zeros."""
    rows = np.random.default_rng(0).random((512, 1)) < 0.1
    clustered = (normal(512 * 128).reshape(512, 128) * rows).ravel()
    scattered = np.random.default_rng(1).permutation(clustered)
    errors = [relative_error(x, through(Trellis(flat(x.size), 0.5), x)[1]) for x in (clustered, scattered)]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.3, 0.64, 0.66, 0.8, 1.3, 5.5, 7.9])
@pytest.mark.parametrize("d", [3000, 70_001, 1 << 18])
def test_messages_keep_to_the_rate(rate, d):
    bits = 8 * len(through(Trellis(flat(d), rate), normal(d))[0]) / d
    assert bits < 1.03 * rate + 8 * 100 / d
    assert bits > 0.95 * rate - 8 * 40 / d


def test_heads_are_small():
    """Beside indices and outliers, a message costs under 100 bytes plus 2 to 4 per piece."""
    layout = Layout(tuple("abcdef"), ((300, 300), (300,), (200, 300), (200,), (50, 100), (10,)))
    scheme = Trellis(layout, 0.02)
    message, _ = through(scheme, normal(layout.d))
    pieces = scheme.pieces.bounds.size - 1
    assert len(message) - 0.02 * layout.d / 8 < 100 + 4 * pieces


@pytest.mark.parametrize("x", [np.zeros(5000, np.float32), np.full(5000, 1e-12, np.float32), np.eye(1, 5000)[0]])
def test_trivial_updates_arrive(x):
    x = x.astype(np.float32)
    for rate in (0.1, 1.0, 4.0):
        mean = np.mean([through(Trellis(flat(x.size), rate), x, n)[1] for n in range(5)], axis=0)
        assert relative_error(x, mean) < 20 if x.any() else not mean.any()


def test_an_empty_model_has_a_message():
    assert through(Trellis(Layout((), ())), np.zeros(0, np.float32))[1].size == 0


def test_any_number_of_threads_gives_the_same_bytes():
    x = np.concatenate([normal(1 << 19), 0.01 * normal(1 << 19, 1)])
    layout = Layout(("a", "b"), ((1 << 19,), (1 << 19,)))
    for rate in (0.1, 1.0):
        messages = [through(Trellis(layout, rate, "fast", threads), x) for threads in (1, 2, 3)]
        assert len({message for message, _ in messages}) == 1
        for _, decoded in messages[1:]:
            np.testing.assert_array_equal(decoded, messages[0][1])


def test_wrong_settings_are_explained():
    for rate in (0, 1e-6, 8.1, float("nan")):
        with pytest.raises(InvalidArgument, match=r"rate must be from 0\.0001 to 8"):
            Trellis(flat(10), rate)
    with pytest.raises(InvalidArgument, match="fast, balanced, best"):
        Trellis(flat(10), 1.0, "most")


# --- strangers


@pytest.mark.parametrize("rate", [0.05, 1.0, 3.0])
def test_damaged_messages_raise_typed_errors(rate):
    x = (np.random.default_rng(0).standard_t(2, 6000)).astype(np.float32)
    scheme = Trellis(flat(x.size), rate)
    (message, _), (other, _) = through(scheme, x), through(scheme, x, 1)
    rng = np.random.default_rng(1)
    for _ in range(400):
        damaged = resealed(mutate(message, other, rng), KEY)  # past the checksum
        try:
            decoded = scheme.decode(damaged, {}, key=KEY).vector
        except KLMSError:
            continue
        assert decoded.shape == x.shape
        assert np.isfinite(decoded).all()


@pytest.mark.parametrize("rate", [0.01, 0.1, 1.0])
def test_a_message_at_several_times_the_rate_is_refused(rate):
    """So that it cannot hold many outliers, each of which takes time."""
    scheme = Trellis(flat(400_000), rate)
    message, _ = through(Trellis(flat(400_000), 6 * rate), normal(400_000))
    with pytest.raises(CorruptMessage, match="too many"):
        scheme.decode(message, {}, key=KEY)
    assert replace(scheme, agreed=False).decode(message, {}, key=KEY).vector.size == 400_000


@pytest.mark.parametrize("cut", [0, 3, 4, 10, 40, 200, -5])
def test_cut_messages_are_refused(cut):
    scheme = Trellis(flat(6000), 2.0)
    message, _ = through(scheme, normal(6000) ** 3)
    body = message[:8] + message[8:-4][:cut]
    with pytest.raises(CorruptMessage):
        scheme.decode(sealed(body, KEY), {}, key=KEY)


def test_surplus_words_are_refused():
    scheme = Trellis(flat(6000), 2.0)
    body = through(scheme, normal(6000))[0][:-4] + bytes(2)
    with pytest.raises(CorruptMessage, match="more in the message"):
        scheme.decode(sealed(body, KEY), {}, key=KEY)


# --- the parts


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
    assert set(pieces.ranges.bounds.tolist()) <= set(pieces.bounds.tolist())
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


def test_outliers_arrive_at_their_places_without_bias():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4096).astype(np.float32) * 0.01
    places = rng.choice(4096, 40, replace=False)
    x[places] += rng.choice([-1, 1], 40) * rng.uniform(1, 5, 40)
    ranges, total = Ranges(np.array([0, 1024, 4096]), np.array([1024, 3072])), np.zeros(4096)
    for n in range(300):
        rest, key, own = x.copy(), SharedKey(1, 1, n), np.random.default_rng(n)
        section = outliers.take(rest, ranges, outliers.plan(rest, ranges, 4096.0, own), key, own)
        content, more = read_section(section + b"more", "outliers")
        assert more == b"more"
        assert np.abs(rest).max() < 1
        outlier_coder.add(content, ranges, key, rest)
        total += rest
    np.testing.assert_allclose(total[places] / 300, x[places], rtol=0.03)


def test_normal_vectors_have_no_outliers():
    rest = normal_quantiles()[np.random.default_rng(0).permutation(65536)]
    ranges = Ranges(np.array([0, 65536]), np.array([65536]))
    for bits in (0.1, 1.0, 3.0):
        plan = outliers.plan(rest, ranges, 65536 * bits, np.random.default_rng(0))
        assert outliers.take(rest.copy(), ranges, plan, KEY, np.random.default_rng(0)) == b""


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "layers"])
def test_with_the_least_error_every_message_contracts(rate, kind):
    rng = np.random.default_rng(3)
    update = {
        "normal": rng.standard_normal(30_000),
        "heavy": rng.standard_t(3, 30_000),
        "sparse": rng.standard_normal(30_000) * (rng.random(30_000) < 0.05),
        "layers": rng.standard_normal(30_000) * np.repeat([1.0, 0.01, 0.1], 10_000),
    }[kind].astype(np.float32)
    layout = Layout(("a", "b", "c"), ((10_000,),) * 3)
    errors = []
    for contracting in (False, True):
        scheme = Trellis(layout, rate, echo=float(contracting))
        message = scheme.encode(update, {}, key=KEY, rng=np.random.default_rng(1))
        assert 8 * len(message) <= rate * update.size * 1.1 + 8 * 64
        decoded = scheme.decode(message, {}, key=KEY).vector
        errors.append(float(np.sum((decoded - update) ** 2) / np.sum(update**2)))
    assert errors[1] < min(1.0, errors[0] * 1.05)


@pytest.mark.parametrize("echo", [0.02, 0.1, 0.5, 1.0])
def test_with_the_right_echo_a_model_that_is_off_comes_closer(echo):
    """Clients undo a share of the model's error in a round, and the server sends that at a low rate."""

    def end(assumed: float) -> float:
        rng, model = np.random.default_rng(0), np.random.default_rng(1).standard_normal(1 << 13, dtype=np.float32)
        scheme, start = Trellis(Layout(("a",), ((1 << 13,),)), 0.15, echo=assumed, threads=1), float(model @ model)
        for number in range(12):
            key = SharedKey(1, number, 0)
            message = scheme.encode(-np.float32(echo) * model, {}, key=key, rng=rng)
            model = model + scheme.decode(message, {}, key=key).vector
        return float(model @ model) / start

    known, unbiased, least = end(echo), end(0.0), end(1.0)
    assert known < 1
    assert known < 1.05 * min(unbiased, least)
    assert unbiased > 1 if echo >= 0.5 else unbiased < least
