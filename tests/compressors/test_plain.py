"""Float16 and int8: every entry by itself, rounded at random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms.codec import SharedKey
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.grouped import Grouped
from klms.compressors.layout import Layout
from klms.compressors.plain import CHUNK, Float16, Int8
from klms.compressors.trellis import Trellis
from klms.errors import CorruptMessage, KLMSError

LAYOUT = Layout(("a", "none", "b"), ((50, 40), (0, 3), (500,)))
KEY = SharedKey(1, 2, 3)


def sent(compressor, update, seed=0):
    message = compressor.encode(update, {}, key=KEY, rng=np.random.default_rng(seed))
    return message, compressor.decode(message, {}, key=KEY).vector


def vector(seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(LAYOUT.d)).astype(np.float32)


@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1.0, 1e11])
def test_float16_keeps_eleven_bits_of_every_entry_at_any_scale(scale):
    update = vector(scale=scale)
    message, decoded = sent(Float16(LAYOUT), update)
    assert len(message) == 12 + 4 * 3 + 2 * LAYOUT.d
    large = np.abs(update) > 1e-3 * scale
    assert (np.abs(decoded - update)[large] <= 2.0**-10 * np.abs(update)[large]).all()


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e11])
def test_int8_is_off_by_less_than_a_step_of_its_chunk(scale):
    update = vector(scale=scale)
    message, decoded = sent(Int8(LAYOUT), update)
    chunks = 2000 // CHUNK + 1 + 1
    assert len(message) == 12 + 4 * chunks + LAYOUT.d
    for start, end in ((0, CHUNK), (CHUNK, 2000), (2000, 2500)):
        step = np.abs(update[start:end]).max() / 127
        assert np.abs(decoded - update)[start:end].max() <= 1.001 * step


@pytest.mark.parametrize("kind", [Float16, Int8])
def test_the_mean_of_many_messages_is_the_update(kind):
    update = vector()
    decoded = [sent(kind(LAYOUT), update, seed)[1] for seed in range(400)]
    single = np.sqrt(np.mean((decoded[0] - update) ** 2))
    assert np.sqrt(np.mean((np.mean(decoded, axis=0) - update) ** 2)) < 2 * single / np.sqrt(400)


@pytest.mark.parametrize("kind", [Float16, Int8])
def test_zeros_and_nothing_are_sent(kind):
    assert not sent(kind(LAYOUT), np.zeros(LAYOUT.d, dtype=np.float32))[1].any()
    assert sent(kind(Layout((), ())), np.zeros(0, dtype=np.float32))[1].size == 0


@pytest.mark.parametrize("kind", [Float16, Int8])
def test_messages_that_are_not_sound_are_refused(kind):
    compressor, update = kind(LAYOUT), vector()
    message, _ = sent(compressor, update)
    payload = unwrap(message, message[3], LAYOUT.d, KEY)
    changed = [payload[:-1], payload + b"\0", payload[:4], np.float32(np.nan).tobytes() + payload[4:]]
    changed.append(payload[:-2] + b"\x00\x7c" if kind is Float16 else payload[:-1] + b"\x80")  # infinity, -128
    changed.append(np.float32(2.0**95).tobytes() + payload[4:])
    for other in changed:
        with pytest.raises(CorruptMessage):
            compressor.decode(wrap(message[3], LAYOUT.d, other, KEY), {}, key=KEY)


GROUPS = Grouped(
    LAYOUT, ((("b",), Float16(LAYOUT.only(["b"]))), (("a", "none"), Trellis(LAYOUT.only(["a", "none"]), 2.0)))
)


def test_groups_are_coded_each_in_its_way():
    update = vector()
    message, decoded = sent(GROUPS, update)
    assert np.abs(decoded - update)[2000:].max() < 0.01
    assert 0.02 < np.mean((decoded - update)[:2000] ** 2) < 0.2
    assert len(message) < 2 * (4 + 12) + 4 + 2 * 500 + 2.1 * 2000 / 8


def test_groups_share_no_randomness():
    twice = Layout(("a", "b"), ((40, 50), (40, 50)))
    one = twice.only(["a"])
    both = Grouped(twice, ((("a",), Trellis(one, 1.0)), (("b",), Trellis(twice.only(["b"]), 1.0))))
    update = np.tile(vector()[:2000], 2)
    _, decoded = sent(both, update)
    assert not np.array_equal(decoded[:2000], decoded[2000:])


@given(st.data())
def test_damaged_groups_are_typed_errors(data):
    message, _ = sent(GROUPS, vector())
    at = data.draw(st.integers(0, len(message) - 1))
    flipped = bytearray(message)
    flipped[at] ^= data.draw(st.integers(1, 255))
    cut = message[:at]
    for other in (bytes(flipped), cut, message + b"\0"):
        with pytest.raises(KLMSError):
            GROUPS.decode(other, {}, key=KEY)
