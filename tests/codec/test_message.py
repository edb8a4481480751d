import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import klms
from klms import (
    Bernoulli,
    Codec,
    CorruptMessage,
    Distribution,
    KLMSError,
    SideInformationMismatch,
    UnsupportedMessage,
    fixed_blocks,
    inspect,
)
from klms.numerics.bit_packing import pack_bits, unpack_bits
from tests.support.messages import GOLDEN_WITH_EVERYTHING, KEY, example, resealed

GOLDEN = {
    "bernoulli": "4b4c0100 01050000 14000000 04000000 88c3b5e8 181c9034 b5c1a53d a0800159 6b4055",
    "categorical": "4b4c0100 02050000 14000000 04000000 7c135fa4 08b66a7b dd8d8c3c 558101e6 ebf7dc",
    "gaussian": "4b4c0100 03050000 14000000 04000000 832a1f29 d8f8ef84 4fb7de3e 976506a9 37d96e",
}


@pytest.mark.parametrize("family", GOLDEN)
def test_golden_bytes(family):
    message, _, _ = example(family)
    assert message.hex(" ", -4) == GOLDEN[family]


GOLDEN_WITH_LONG_SCALARS = (
    "4b4c0101 01050200 14000000 04000000 88c3b5e8 181c9034 b5c1a53d 0000c03f 000000c0 0700c8c5 91aca080 0164a944 60"
)
GOLDEN_SAMPLE = "00000000001000010001"


def test_golden_bytes_with_blocks_and_scalars():
    message, p, _ = example("bernoulli", send_blocks=True, scalars=(1.5, -2.0))
    assert message.hex(" ", -4) == GOLDEN_WITH_EVERYTHING
    for golden in (GOLDEN_WITH_EVERYTHING, GOLDEN_WITH_LONG_SCALARS):
        assert "".join(map(str, Codec().decode(bytes.fromhex(golden), p, key=KEY))) == GOLDEN_SAMPLE
        assert inspect(bytes.fromhex(golden)).scalars == (1.5, -2.0)


@pytest.mark.parametrize("scalar", [1e-9, 0.1, 65520.0, 70000.0])
def test_scalars_that_float16_would_change_travel_as_float32(scalar):
    message, _, _ = example("bernoulli", scalars=(1.5, scalar))
    assert inspect(message).scalars == (1.5, float(np.float32(scalar)))
    assert inspect(message).scalar_bytes == 8


def test_inspect_reads_the_header():
    message, _, blocks = example("categorical", send_blocks=True, scalars=(1.5, -2.0))
    info = inspect(message)
    assert (info.version, info.family, info.bits, info.d, info.blocks) == (1, "categorical", 5, 20, 4)
    assert info.carries_blocks
    assert info.scalars == (1.5, -2.0)
    assert info.mean_kl > 0
    assert info.total_bytes == len(message) == 28 + 4 + info.block_size_bytes + info.index_bytes + 4
    assert info.bits_per_parameter == 8 * len(message) / 20
    assert len(blocks) == info.blocks


@given(st.integers(1, 400), st.integers(1, 16))
def test_header_and_checks_take_32_bytes(count, bits):
    p = Bernoulli(np.full(count, 0.5))
    message = Codec(bits=bits).encode(p, p, fixed_blocks(count, 1), key=KEY, rng=np.random.default_rng(0))
    assert len(message) == 32 + -(-count * bits // 8)


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=50), st.integers(1, 16))
def test_bits_are_packed_without_gaps(values, bits):
    array = np.array(values, dtype=np.uint16) & ((1 << bits) - 1)
    packed = pack_bits(array, bits)
    number = sum(int(v) << (bits * m) for m, v in enumerate(array))
    assert packed.tobytes() == number.to_bytes((len(values) * bits + 7) // 8, "little")
    np.testing.assert_array_equal(unpack_bits(packed, len(values), bits), array)


@pytest.mark.parametrize(
    ("position", "value", "error"),
    [
        (0, 0, CorruptMessage),
        (2, 2, CorruptMessage),
        (2, 3, UnsupportedMessage),
        (3, 4, UnsupportedMessage),
        (3, 1, CorruptMessage),
        (4, 9, UnsupportedMessage),
        (4, 2, SideInformationMismatch),
        (5, 0, CorruptMessage),
        (5, 17, CorruptMessage),
        (5, 7, CorruptMessage),
        (6, 1, CorruptMessage),
        (8, 21, SideInformationMismatch),
        (12, 0, CorruptMessage),
        (12, 255, CorruptMessage),
        (16, 1, SideInformationMismatch),
        (27, 0xFF, CorruptMessage),
        (30, 0xFF, CorruptMessage),
    ],
)
def test_a_changed_field_behind_a_good_checksum(position, value, error):
    message, p, blocks = example("bernoulli")
    changed = bytearray(message)
    assert changed[position] != value
    changed[position] = value
    with pytest.raises(error):
        Codec().decode(resealed(bytes(changed)), p, key=KEY, blocks=blocks)


def test_every_single_flipped_bit_is_noticed():
    message, p, _ = example("gaussian", send_blocks=True, scalars=(3.0,))
    for bit in range(8 * len(message)):
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptMessage, UnsupportedMessage)):
            Codec().decode(bytes(changed), p, key=KEY)


def test_every_cut_and_extension_is_noticed():
    message, p, _ = example("categorical", send_blocks=True)
    for length in range(len(message)):
        with pytest.raises(CorruptMessage):
            Codec().decode(message[:length], p, key=KEY)
    for extra in range(1, 9):
        with pytest.raises(CorruptMessage):
            Codec().decode(message + bytes(extra), p, key=KEY)


def test_a_message_without_blocks_needs_them():
    message, p, blocks = example("bernoulli")
    with pytest.raises(SideInformationMismatch, match="blocks="):
        Codec().decode(message, p, key=KEY)
    with pytest.raises(SideInformationMismatch, match="block map"):
        Codec().decode(message, p, key=KEY, blocks=fixed_blocks(20, 7))
    assert Codec().decode(message, p, key=KEY, blocks=blocks).shape == (20,)


@pytest.mark.parametrize(
    "kind",
    [
        bytearray,
        memoryview,
        lambda m: np.frombuffer(m, np.uint8),
        lambda m: memoryview(bytes(b for x in m for b in (x, 0)))[::2],
    ],
)
def test_any_bytes_like_object_is_a_message(kind):
    message, p, _ = example("bernoulli", send_blocks=True)
    np.testing.assert_array_equal(Codec().decode(kind(message), p, key=KEY), Codec().decode(message, p, key=KEY))


def test_all_errors_are_caught_as_one():
    errors = [error for error in vars(klms.errors).values() if isinstance(error, type)]
    assert {CorruptMessage, UnsupportedMessage, SideInformationMismatch} < set(errors)
    assert all(issubclass(error, KLMSError) for error in errors)


def test_no_two_families_have_the_same_number():
    with pytest.raises(TypeError, match="laplace has number 3, which is that of gaussian"):

        class Laplace(Distribution):
            family = "laplace"
            number = 3
