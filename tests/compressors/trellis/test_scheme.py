"""The dense scheme: errors beside EDEN's and the limit, rates, echo, and bytes from strangers."""

from dataclasses import replace

import numpy as np
import pytest

from klms import CorruptMessage, KLMSError, SharedKey
from klms.compressors.eden import Eden
from klms.compressors.layout import Layout
from klms.compressors.trellis import Trellis
from klms.errors import InvalidArgument
from tests.support.messages import resealed, sealed
from tests.support.mutation import mutate
from tests.support.vectors import KEY, flat, normal, relative_error, through

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
        assert 0.97 / (4**bits - 1) < error < bound * relative_error(x, through(Eden(flat(x.size), bits), x)[1])


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
        assert relative_error(x, y) < bound * relative_error(x, through(Eden(flat(x.size), rate), x)[1])


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


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (1 << 4, "not one of this format"),
        (1 << 5, "not one of this format"),
        (1 << 6, "products"),
        (1 << 7, "outliers"),
    ],
)
def test_flags_that_mean_nothing_and_empty_sections_are_refused(flags, reason):
    scheme = Trellis(flat(6000), 2.0)
    body = bytearray(through(scheme, np.zeros(6000, np.float32))[0][:-4])
    table = 12 + 3 * scheme.pieces.sizes.size
    body[11] |= flags
    body[table:table] = bytes(4)  # the length of an empty section
    with pytest.raises(CorruptMessage, match=reason):
        scheme.decode(sealed(bytes(body), KEY), {}, key=KEY)
