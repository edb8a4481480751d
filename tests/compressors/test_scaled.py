"""Arrays that are scaled before they are coded, by how much they matter."""

import numpy as np
import pytest

from klms.codec import SharedKey
from klms.compressors import scaled
from klms.compressors.klms import KLMS
from klms.compressors.layout import Layout
from klms.compressors.plain import Float16
from klms.compressors.scaled import MOST, Scaled
from klms.errors import CorruptMessage

LAYOUT = Layout(("large", "matters", "bias"), ((200, 100), (60, 50), (100,)))
EXPONENTS = {"matters": 3, "bias": -1}
KEY = SharedKey(1, 2, 3)


def errors(compressor, update):
    message = compressor.encode(update, {}, key=KEY, rng=np.random.default_rng(0))
    off = compressor.decode(message, {}, key=KEY).vector - update
    return {name: float(np.mean(part**2)) for name, part in LAYOUT.split(off)}


def update_of(seed=0):
    return np.random.default_rng(seed).standard_normal(LAYOUT.d).astype(np.float32)


def test_what_is_scaled_up_has_less_error_and_the_rest_pays_for_it():
    update, plain = update_of(), KLMS(LAYOUT, 1.0)
    before, after = errors(plain, update), errors(Scaled(LAYOUT, plain, EXPONENTS), update)
    assert after["matters"] < before["matters"] / 16
    assert before["large"] < after["large"] < 3 * before["large"]


def test_scaling_itself_loses_nothing_and_leaves_the_update_alone():
    update = update_of()
    kept = update.copy()
    assert errors(Scaled(LAYOUT, Float16(LAYOUT), EXPONENTS), update) == errors(Float16(LAYOUT), update)
    np.testing.assert_array_equal(update, kept)


def test_the_mean_of_many_messages_is_the_update():
    update, compressor = update_of(), Scaled(LAYOUT, KLMS(LAYOUT, 0.3), EXPONENTS)
    total = np.zeros(LAYOUT.d)
    for number in range(100):
        key = SharedKey(1, number, 3)
        message = compressor.encode(update, {}, key=key, rng=np.random.default_rng(number))
        total += compressor.decode(message, {}, key=key).vector
    single = errors(compressor, update)
    for name, off in LAYOUT.split((total / 100 - update).astype(np.float32)):
        assert np.mean(off**2) < 2 * single[name] / 100


def test_exponents_are_written_relative_to_the_largest_array_and_within_bounds():
    data = scaled.written({"large": -9, "matters": 7, "bias": 90}, LAYOUT)
    assert scaled.read(data, LAYOUT) == {"large": 0, "matters": 16, "bias": MOST}
    assert scaled.written({"of another model": 4}, LAYOUT) == bytes(3)
    assert scaled.written({}, Layout((), ())) == b""


@pytest.mark.parametrize("data", [b"", bytes(2), bytes(4), bytes([0, 0, MOST + 1]), b"\x80\x00\x00"])
def test_exponents_that_do_not_fit_are_refused(data):
    with pytest.raises(CorruptMessage, match="exponents"):
        scaled.read(data, LAYOUT)
