"""The baselines against their own papers: errors, bias and bits."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms import CorruptMessage, SharedKey, SideInformationMismatch
from klms.compressors.drive import Drive
from klms.compressors.eden import Eden, normal_levels
from klms.compressors.layout import Layout
from klms.compressors.qsgd import QSGD
from klms.compressors.quic_fl import Codebooks, QuicFL
from klms.compressors.quic_fl import _round as round_
from klms.compressors.rotation import Rotation
from klms.compressors.terngrad import TernGrad
from klms.compressors.topk import TopK
from klms.compressors.trellis import Trellis
from klms.errors import InvalidArgument, TrainingDiverged
from klms.numerics.walsh_hadamard import walsh_hadamard
from tests.support.messages import resealed, sealed
from tests.support.vectors import KEY, flat, normal, through

LAYOUT = Layout(("a", "b"), ((30, 30), (124,)))
D = LAYOUT.d


# --- the rotation


@pytest.mark.parametrize("n", [1, 2, 4, 8, 32, 256, 8192, 1 << 15])
def test_the_transform_is_walsh_hadamards(n):
    x = normal(n)
    y = x.copy()
    walsh_hadamard(y)
    places = np.random.default_rng(1).integers(0, n, 20)
    indices = np.arange(n)
    for k in places:
        signs = np.array([(-1) ** int(i & int(k)).bit_count() for i in indices])
        assert y[k] == pytest.approx(float(signs @ x.astype(float)), abs=1e-5 * n)


@given(st.integers(1, 5000))
def test_rotations_of_any_length_keep_lengths_and_can_be_undone(d):
    rotation = Rotation(d)
    assert d <= rotation.padded < d + 256
    assert all(size & (size - 1) == 0 for size in rotation.sizes.tolist())
    x = normal(d, d)
    y = rotation.apply(x, KEY)
    assert float(y @ y) == pytest.approx(float(x @ x), rel=1e-4)
    np.testing.assert_allclose(rotation.undo(y, KEY), x, atol=1e-4)


def test_rotations_do_not_depend_on_the_number_of_threads():
    x = normal(3_000_000)
    one, two = Rotation(x.size, 1).apply(x, KEY), Rotation(x.size, 2).apply(x, KEY)
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, Rotation(x.size, 1).apply(x, SharedKey(1, 2, 4)))


def test_a_rotated_spike_looks_normal():
    """The fourth moment of a normal law is 3; that of a vector with ten spikes among 4,096 is 400."""
    x = np.zeros(4096, dtype=np.float32)
    x[:: 4096 // 100] = 1.0
    y = Rotation(4096).apply(x, KEY).astype(float)
    assert np.mean(y**4) / np.mean(y**2) ** 2 == pytest.approx(3, abs=0.6)


# --- errors of the papers


@pytest.mark.parametrize("bits", range(1, 9))
def test_levels_are_lloyd_max(bits):
    """Each level is the mean of its cell, and the error is that of Max's tables."""
    levels = normal_levels(bits).astype(float)
    np.testing.assert_allclose(levels, -levels[::-1])
    x = np.random.default_rng(0).standard_normal(2_000_000)
    quantised = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, x)]
    known = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497, 5: 0.002499, 6: 0.0006419, 7: 0.0001630, 8: 0.0000411}
    assert np.mean((x - quantised) ** 2) == pytest.approx(known[bits], rel=0.01)


@pytest.mark.parametrize(
    ("scheme", "error", "within"),
    [
        (Drive(flat(1 << 20)), 0.571, 0.02),
        (Eden(flat(1 << 20), 1), 0.571, 0.02),
        (Eden(flat(1 << 20), 2), 0.133, 0.05),
        (Eden(flat(1 << 20), 3), 0.0358, 0.05),
        (Eden(flat(1 << 20), 4), 0.0096, 0.05),
        (Eden(flat(1 << 20), 0.1), math.pi / 2 / 0.1 - 1, 0.02),
        (Eden(flat(1 << 20), 1.5), 2 / (1 / 1.571 + 1 / 1.133) - 1, 0.02),
        (QuicFL(flat(1 << 20), 1), 1.487, 0.02),
        (QuicFL(flat(1 << 20), 2), 0.216, 0.02),
        (QuicFL(flat(1 << 20), 3), 0.0434, 0.02),
        (QuicFL(flat(1 << 20), 4), 0.0101, 0.02),
    ],
    ids=str,
)
def test_errors_are_those_of_the_papers(scheme, error, within):
    x = normal(1 << 20)
    message, y = through(scheme, x)
    assert float(np.sum((y - x) ** 2) / np.sum(x**2)) == pytest.approx(error, rel=within)
    exact = 48 / 512 if isinstance(scheme, QuicFL) else 0.0  # 1 in 512: a float32 and some 13 bits of position
    rate = (scheme.rate or getattr(scheme, "bits", 1.0)) + exact
    assert 8 * len(message) / x.size <= rate * 1.001 + 8 * 20 / x.size


@pytest.mark.parametrize("d", [431_080, 1_000_000, 999_999])
@pytest.mark.parametrize("kind", [Drive, Eden])
def test_one_bit_schemes_cost_one_bit_whatever_the_length(kind, d):
    message, _ = through(kind(flat(d)), normal(d))
    assert 8 * (len(message) - 12) / d <= 1.001


# --- bias


@pytest.mark.parametrize(
    "scheme",
    [
        QSGD(LAYOUT, 1, 256),
        QSGD(LAYOUT, 7, 0),
        TernGrad(LAYOUT, 0),
        Drive(LAYOUT),
        Eden(LAYOUT, 0.4),
        Eden(LAYOUT, 1),
        Eden(LAYOUT, 2.5),
        QuicFL(LAYOUT, 1),
        QuicFL(LAYOUT, 3),
        Trellis(LAYOUT, 0.4),
        Trellis(LAYOUT, 1.5),
        Trellis(LAYOUT, 4.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("least", [1000, pytest.param(4000, marks=pytest.mark.soak)])
def test_unbiased_schemes_are_unbiased(scheme, least):
    """Over many keys and draws, every coordinate's mean error against its own deviation, and that of their sums.

    The largest of 1,024 z-scores exceeds 5.5 by chance with probability below 1024 * 3.8e-8 = 4e-5; a fifth of a
    deviation of bias in one draw would give a z-score of 6 and more. The vector is skewed, so that a bias could show.
    A bias of all coordinates, towards zero or to one side, shows in the sums at a hundredth of a deviation.
    """
    rare = isinstance(scheme, QSGD | TernGrad)  # a small coordinate is sent in one of a thousand draws
    draws = max(4000, least) if rare else least
    x = np.exp(normal(D)).astype(np.float32) * np.sign(normal(D, 1))
    directions = np.stack([x / np.linalg.norm(x), np.sign(x) / D**0.5, np.ones(D) / D**0.5], axis=1)
    total, square = np.zeros(D + 3), np.zeros(D + 3)
    for n in range(draws):
        error = through(scheme, x, n)[1].astype(float) - x
        errors = np.concatenate([error, error @ directions])
        total += errors
        square += errors * errors
    deviation = np.sqrt(square / draws / draws) + 1e-6  # an entry may be sent exactly
    assert np.max(np.abs(total / draws) / deviation) < 5.5


@pytest.mark.parametrize("draws", [600, pytest.param(2000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("d", [1, 2, 3, 16, 1030, 1040])
@pytest.mark.parametrize("kind", [Drive, Eden, QuicFL, partial(Eden, rate=0.4), partial(Trellis, rate=0.8)])
def test_short_vectors_and_tails_are_unbiased_too(kind, d, draws):
    """The last entries of a model are often few, and share their piece with padding.

    From 16 on no bias shows (false alarm below 6 * 3.8e-8); with two or three, some percent of their norm is left.
    """
    x = np.exp(normal(d, 3)).astype(np.float32)
    tail = slice(max(0, d - 6), d)
    scheme = kind(flat(d))
    errors = np.array([through(scheme, x, n)[1][tail].astype(float) - x[tail] for n in range(draws)])
    bias, deviation = errors.mean(axis=0), errors.std(axis=0) / draws**0.5
    assert np.linalg.norm(bias) < 0.06 * np.linalg.norm(x[tail]) + 5.5 * np.linalg.norm(deviation)
    if d in (16, 1040):
        assert np.abs(bias / (deviation + 1e-6)).max() < 5.5


@pytest.mark.parametrize(("scheme", "usual"), [(Eden(flat(1040), 0.05), 31), (Trellis(flat(1040), 0.3), 10)], ids=str)
def test_the_error_of_a_tail_is_that_of_the_rest(scheme, usual):
    """A scale that rests on too little may be anything: the tail's error was thousands of times the vector's."""
    x = normal(1040)
    errors = [np.sum((through(scheme, x, n)[1] - x)[1024:] ** 2) / np.sum(x[1024:] ** 2) for n in range(200)]
    assert np.mean(errors) < 3 * usual
    assert np.max(errors) < 20 * usual


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_quic_fl_is_unbiased_for_every_coordinate_whatever_the_rotation(bits):
    """Not only over rotations: the mean over codebooks and private draws is the coordinate itself."""
    books = Codebooks.of(bits)
    z = np.linspace(-3.2, 3.2, 12_800, dtype=np.float32)
    bounds, factors, drawn = np.array([0, z.size]), np.ones(1), np.random.default_rng(0)
    draws, total = 64 * books.number, np.zeros(z.size)
    for n in range(draws):
        indices = np.empty(z.size, dtype=np.uint16)
        chosen = np.full(z.size, n % books.number, dtype=np.uint16)
        round_(0, 1, bounds, z, factors, books, chosen, drawn.random(z.size, dtype=np.float32), indices)
        exact = indices == 0xFFFF
        assert np.array_equal(exact, np.abs(z) > books.largest)
        total += np.where(exact, z, books.levels[np.where(exact, 0, indices) * books.number + chosen])
    # At any z, only one codebook rounds at random, by a gap of less than 28, so the mean moves by little.
    assert np.abs((total / draws - z).reshape(-1, 128).mean(axis=1)).max() < 0.02


def test_terngrad_sends_layers_of_one_entry_and_constant_ones():
    layout = Layout(("one", "constant"), ((1,), (50,)))
    x = np.full(51, 0.7, dtype=np.float32)
    np.testing.assert_allclose(through(TernGrad(layout), x)[1], x, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e20])
@pytest.mark.parametrize(
    "scheme", [Drive(LAYOUT), Eden(LAYOUT, 2), QuicFL(LAYOUT), Trellis(LAYOUT), TernGrad(LAYOUT), TopK(LAYOUT, 0.1)]
)
def test_updates_that_cannot_be_sent_are_refused(scheme, bad):
    x = normal(D)
    x[7] = bad
    with pytest.raises(TrainingDiverged, match="learning rate"):
        through(scheme, x)
    with pytest.raises(InvalidArgument, match="parameters"):
        through(scheme, normal(D + 1))


@pytest.mark.parametrize("scheme", [TernGrad(LAYOUT), TopK(LAYOUT, 0.1)])
def test_surplus_bytes_are_refused(scheme):
    message = bytearray(through(scheme, normal(D))[0])[:-4] + bytes(400)
    with pytest.raises(CorruptMessage, match="more"):
        scheme.decode(sealed(bytes(message), KEY), {}, key=KEY)


def test_terngrad_is_unbiased_for_what_its_clipping_leaves():
    x = normal(D) * 3
    mean = np.mean([through(TernGrad(LAYOUT, 2.5), x, n)[1] for n in range(2000)], axis=0)
    most = [2.5 * np.sqrt(np.mean(x[part] ** 2)) for part in LAYOUT.parts]
    clipped = np.concatenate([np.clip(x[part], -m, m) for part, m in zip(LAYOUT.parts, most, strict=True)])
    assert np.abs(mean - clipped).max() < 0.9  # 5.5 deviations of a mean of 2,000 draws of at most 7.5


# --- bits


def test_terngrad_costs_its_ternary_entropy():
    layout = Layout(("w", "v"), ((100_000,), (30_000,)))
    x = normal(layout.d) + 0.3
    message, y = through(TernGrad(layout), x)
    entropy = 0.0
    for part in layout.parts:
        shares = np.unique(y[part], return_counts=True)[1] / y[part].size
        entropy -= y[part].size * float(np.sum(shares * np.log2(shares)))
    assert 8 * len(message) <= 1.02 * entropy
    assert 8 * len(message) >= entropy


def test_top_k_sends_the_largest_and_little_more_than_their_entropy():
    layout = Layout(("w",), ((100_000,),))
    x = normal(layout.d)
    message, y = through(TopK(layout, 0.01), x)
    kept = np.flatnonzero(y)
    assert kept.size == 1000
    assert np.abs(x[kept]).min() >= np.abs(np.delete(x, kept)).max()
    np.testing.assert_allclose(y[kept], x[kept], rtol=1e-3)
    entropy = 100_000 * -(0.01 * math.log2(0.01) + 0.99 * math.log2(0.99)) + 1000 * (1 + 16)
    assert 8 * len(message) < 1.01 * entropy + 8 * 40


def test_top_k_of_a_sparse_vector_sends_no_zeros():
    x = np.zeros(D, dtype=np.float32)
    x[[3, 500]] = 1.0, -2.0
    _, y = through(TopK(LAYOUT, 0.5), x)
    np.testing.assert_array_equal(y, x)


def test_the_budget_is_part_of_the_agreement():
    message, _ = through(Eden(LAYOUT, 2), normal(D))
    with pytest.raises(SideInformationMismatch, match="bits per parameter"):
        Eden(LAYOUT, 3).decode(message, {}, key=KEY)
    message, _ = through(QuicFL(LAYOUT, 2), normal(D))
    with pytest.raises(SideInformationMismatch, match="bits per coordinate"):
        QuicFL(LAYOUT, 3).decode(message, {}, key=KEY)


def test_a_scale_that_would_overflow_is_refused():
    message = bytearray(through(Drive(LAYOUT), normal(D))[0])
    message[8:12] = np.float32(3e38).tobytes()
    with pytest.raises(CorruptMessage, match="scale"):
        Drive(LAYOUT).decode(resealed(bytes(message), KEY), {}, key=KEY)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [Drive, Eden])
def test_encoding_takes_at_most_three_real_ffts(kind):
    import time

    x = normal(10_000_000)
    scheme = kind(flat(x.size), threads=1)

    def best(work) -> float:
        times = []
        for _ in range(4):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return min(times)

    ours = best(lambda: scheme.encode(x, {}, key=KEY, rng=np.random.default_rng(0)))
    fft = best(lambda: np.fft.rfft(x))
    print(f"{kind.__name__}: {ours:.3f} s, rfft {fft:.3f} s, {ours / fft:.2f} times")
    assert ours <= 3 * fft
