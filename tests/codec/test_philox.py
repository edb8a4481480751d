import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms import SharedKey
from klms.codec.blocks import MAX_BLOCK_SIZE, MAX_COORDINATES
from klms.codec.candidates import WINDOWS
from klms.errors import InvalidArgument
from klms.numerics.philox import (
    G_STREAM,
    ROTATION_STREAMS,
    SUBSET_STREAM,
    U_STREAM,
    WINDOW_STREAM,
    buffer_size,
    philox4x32,
    words,
)
from tests.codec import reference
from tests.codec.strategies import keys

# Random123's published known-answer vectors for philox4x32-10: counter, key, output.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "output"), VECTORS)
def test_random123_vectors(counter, key, output):
    numbers = [np.uint64(int(text, 16)) for text in f"{counter} {key}".split()]
    expected = [int(text, 16) for text in output.split()]
    assert list(philox4x32(*numbers)) == expected
    assert list(reference.philox(tuple(map(int, numbers[:4])), tuple(map(int, numbers[4:])))) == expected


@given(keys, st.integers(0, 2**31), st.integers(1, 40), st.sampled_from([U_STREAM, G_STREAM, SUBSET_STREAM]))
def test_words_are_addressed_one_by_one(key, first, n, stream):
    buffer = np.zeros(buffer_size(n), dtype=np.uint64)
    got = words(buffer, first, n, stream, key.words())
    assert got.tolist() == [reference.word(key, stream, first + i) for i in range(n)]


def test_streams_do_not_overlap_for_the_most_coordinates():
    d = MAX_COORDINATES
    padded = d + (1 << 20)  # a rotation pads its last piece, of 2^20 coordinates at the most
    words_of = {
        U_STREAM: d,
        WINDOW_STREAM: d,
        G_STREAM: 16 * (MAX_BLOCK_SIZE + WINDOWS),
        ROTATION_STREAMS[0]: -(-padded // 16),
        ROTATION_STREAMS[1]: -(-padded // 16),
        SUBSET_STREAM: 4 * (padded // 256),  # four words for each piece of a rotation
    }
    assert len(words_of) == 6
    starts = sorted(words_of)
    for stream, following in zip(starts, [*starts[1:], 1 << 32], strict=True):
        assert stream + -(-words_of[stream] // 8) <= following


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", -1), ("seed", 2**64), ("round", 2**32), ("client", 2**64), ("client", 1.5), ("round", True)],
)
def test_a_key_outside_its_range_names_the_field(field, value):
    with pytest.raises(InvalidArgument, match=field):
        SharedKey(**({"seed": 1, "round": 2, "client": 3} | {field: value}))


def test_every_field_of_the_key_changes_the_words():
    base = {"seed": 1, "round": 2, "client": 3}
    variants = [base] + [base | {field: base[field] + step} for field in base for step in (1, 2**20)]
    variants += [base | {"seed": 1 + 2**40}, base | {"client": 3 + 2**40}]
    streams = set()
    for fields in variants:
        buffer = np.zeros(buffer_size(16), dtype=np.uint64)
        streams.add(words(buffer, 0, 16, U_STREAM, SharedKey(**fields).words()).tobytes())
    assert len(streams) == len(variants)
