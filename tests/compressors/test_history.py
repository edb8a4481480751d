"""Entries ordered by the last global update: what it gains, that it is free, unbiased, and agreed on."""

import hashlib

import numpy as np
import pytest

from klms import KLMSError, SharedKey, SideInformationMismatch
from klms.compressors.history import HISTORY, history
from klms.compressors.layout import Layout
from klms.compressors.pieces import Pieces
from klms.compressors.trellis import SCHEME, Trellis
from tests.support.messages import sealed
from tests.support.mutation import mutate

FIRST = SharedKey(5, 1, 0)
LAYOUT = Layout(("conv", "bias", "dense"), ((50, 400), (30,), (300, 100)))
_ORDERED = 1 << 5


def update_and_history(layout: Layout = LAYOUT, noise: float = 0.3) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """An update whose entries have sizes from 1 to 100, and a last update of about the same sizes."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(0, np.log(100), layout.d))
    last = sizes * np.exp(noise * rng.standard_normal(layout.d)) * rng.choice([-1, 1], layout.d)
    return (sizes * rng.standard_normal(layout.d)).astype(np.float32), history(last.astype(np.float32))


def through(scheme, x, side, number=0):
    key = SharedKey(5, 1, number)
    message = scheme.encode(x, side, key=key, rng=np.random.default_rng([9, number]))
    return message, scheme.decode(message, side, key=key).vector


def is_ordered(message: bytes) -> bool:
    return bool(message[11] & _ORDERED)


def relative_error(x, y):
    return float(np.sum((y.astype(float) - x) ** 2) / np.sum(x.astype(float) ** 2))


@pytest.mark.parametrize(("rate", "most"), [(0.1, 0.75), (0.5, 0.4), (1.0, 0.35), (2.0, 0.3)])
def test_history_takes_a_share_off_the_error_at_equal_bits(rate, most):
    x, side = update_and_history()
    scheme = Trellis(LAYOUT, rate)
    (plain, without), (ordered, better) = through(scheme, x, {}), through(scheme, x, side)
    assert is_ordered(ordered)
    assert not is_ordered(plain)
    assert abs(len(ordered) - len(plain)) < 0.03 * len(plain)
    assert relative_error(x, better) < most * relative_error(x, without)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_history_that_says_nothing_is_not_used(rate):
    x, side = update_and_history()
    useless = {HISTORY: np.random.default_rng(1).permutation(side[HISTORY])}
    message, _ = through(Trellis(LAYOUT, rate), x, useless)
    assert not is_ordered(message)
    np.testing.assert_array_equal(*(Trellis(LAYOUT, rate).decode(message, s, key=FIRST).vector for s in ({}, useless)))


@pytest.mark.parametrize(("rate", "draws"), [(0.4, 600), (2.0, 400)])
def test_ordered_messages_are_unbiased(rate, draws):
    """The largest of 1,230 z-scores exceeds 5.5 by chance with probability below 5e-5; see the other schemes' test."""
    layout = Layout(("a", "b"), ((30, 40), (30,)))
    x, side = update_and_history(layout)
    total, square = np.zeros(layout.d), np.zeros(layout.d)
    scheme = Trellis(layout, rate, "fast")
    for n in range(draws):
        message, y = through(scheme, x, side, n)
        assert is_ordered(message)
        error = y.astype(float) - x
        total += error
        square += error * error
    assert np.max(np.abs(total / draws) / (np.sqrt(square / draws / draws) + 1e-6)) < 5.5


@pytest.mark.parametrize("held", ["nothing", "another", "of another model", "of another type"])
def test_a_decoder_without_the_same_history_refuses(held):
    x, side = update_and_history()
    message, _ = through(Trellis(LAYOUT), x, side)
    wrong = side[HISTORY].copy()
    wrong[7] ^= 1
    sides = {
        "nothing": {},
        "another": {HISTORY: wrong},
        "of another model": {HISTORY: wrong[:-1]},
        "of another type": {HISTORY: side[HISTORY].astype(np.float32)},
    }
    with pytest.raises(SideInformationMismatch, match="global update"):
        Trellis(LAYOUT).decode(message, sides[held], key=FIRST)


def test_threads_change_no_byte_of_an_ordered_message():
    layout = Layout(("a", "b"), ((600, 1000), (300, 100)))
    x, side = update_and_history(layout)
    trips = [through(Trellis(layout, 0.5, "fast", threads), x, side) for threads in (1, 2, None)]
    assert is_ordered(trips[0][0])
    assert len({message for message, _ in trips}) == 1
    np.testing.assert_array_equal(trips[0][1], trips[1][1])


def test_the_bytes_of_an_ordered_message_are_pinned():
    x, side = update_and_history()
    message, _ = through(Trellis(LAYOUT, 1.0), x.round(1), side)
    assert message[:20] == bytes.fromhex("4b42020c6ec30000080c45a72f6ac563a2fd8b93")
    assert hashlib.sha256(message).hexdigest()[:16] == "afa0b79bb9be1507"


@pytest.mark.parametrize("rate", [0.2, 2.0])
def test_damaged_ordered_messages_raise_typed_errors(rate):
    x, side = update_and_history()
    scheme = Trellis(LAYOUT, rate, "fast")
    (message, _), (other, _) = through(scheme, x, side), through(scheme, x, side, 1)
    rng = np.random.default_rng(1)
    for _ in range(200):
        body = bytearray(mutate(message, other, rng, FIRST))[:-4]
        try:
            y = scheme.decode(sealed(body, FIRST), side, key=FIRST).vector
        except KLMSError:
            continue
        assert y.shape == x.shape
        assert np.isfinite(y).all()


def test_entries_are_ordered_by_class_within_each_group_and_put_back():
    _, side = update_and_history()
    pieces = Pieces(LAYOUT, 256, 4096, classes=side[HISTORY])
    x = np.arange(1, LAYOUT.d + 1, dtype=np.float32)
    gathered = pieces.gather(x)
    np.testing.assert_array_equal(pieces.scatter(gathered), x)
    groups = [range(20_000), [*range(20_030, 50_030), *range(20_000, 20_030)]]  # the bias joins the last array
    at = 0
    for group in groups:
        expected = sorted(group, key=lambda i: -int(side[HISTORY][i]))  # stable
        np.testing.assert_array_equal(gathered[at : at + len(group)], np.array(expected) + 1)
        at += -len(group) // 256 * -256
    assert pieces.ranges.sizes.sum() == LAYOUT.d
    assert set(pieces.ranges.bounds.tolist()) <= set(pieces.bounds.tolist())


def test_classes_are_half_octaves_of_the_magnitude():
    powers = 2.0 ** np.arange(-98, 27)
    for factor, more in ((1.0, 0), (1.499, 0), (1.5, 1), (1.999, 1)):
        classes = history((-factor * powers).astype(np.float32))[HISTORY]
        np.testing.assert_array_equal(classes, 4 + more + 2 * np.arange(125))
    assert history(np.array([0, 1e-38, 1e-45, 1e38], dtype=np.float32))[HISTORY].tolist() == [0, 0, 0, 255]


def test_history_can_be_switched_off():
    assert SCHEME.uses_history(SCHEME.settings())
    assert not SCHEME.uses_history(SCHEME.settings(order="never"))
