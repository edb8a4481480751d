"""The container of named arrays, and the frame around whatever travels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from klms.errors import CorruptMessage, KLMSError, SideInformationMismatch, UnsupportedMessage
from klms.exchange.arrays import NAMES, read_arrays, write_arrays
from klms.exchange.frame import Frame, Kind, WrongRound, cause_of

ARRAY = hnp.arrays(st.sampled_from(NAMES), hnp.array_shapes(min_dims=0, min_side=0, max_side=4))


@given(st.dictionaries(st.text(max_size=5), ARRAY, max_size=4), st.lists(st.integers(0, 9), max_size=3))
def test_arrays_come_back_to_the_byte(arrays, meta):
    found, beside = read_arrays(write_arrays(arrays, meta))
    assert beside == meta
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_other_byte_orders_and_strides_are_written_as_all_others():
    array = np.arange(12, dtype=">i4").reshape(3, 4)[::-1, ::2]
    (found,) = read_arrays(write_arrays({"a": array}))[0].values()
    np.testing.assert_array_equal(found, array)


@given(st.data())
def test_damaged_bytes_are_refused_or_read_without_harm(data):
    written = bytearray(write_arrays({"a": np.arange(5), "b": np.ones((2, 2), np.float32)}))
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found, _ = read_arrays(bytes(written))
    except CorruptMessage:
        return
    assert sum(array.nbytes for array in found.values()) <= len(written)


def test_what_is_cut_extended_or_of_objects_is_refused():
    written = write_arrays({"a": np.arange(5)})
    for data in (b"", written[:3], written[:-1], written + b"0"):
        with pytest.raises(CorruptMessage):
            read_arrays(data)
    with pytest.raises(CorruptMessage, match="not a type"):
        read_arrays(write_arrays({"a": np.array(["text"])}))


FRAME = Frame(Kind.REPLY, 3, 7, b"12345678", b"body")


def test_the_frame_s_bytes_are_these():
    assert FRAME.to_bytes().hex() == "4b58010203000000070000003132333435363738626f647985547cd1"
    assert Frame.from_bytes(FRAME.to_bytes(), Kind.REPLY) == FRAME


def test_every_flipped_bit_of_a_frame_is_found():
    data = FRAME.to_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(KLMSError):
            Frame.from_bytes(bytes(changed), Kind.REPLY)


def test_frames_of_another_kind_version_round_or_model():
    with pytest.raises(CorruptMessage, match="a request was expected"):
        Frame.from_bytes(FRAME.to_bytes(), Kind.REQUEST)
    newer = bytearray(FRAME.to_bytes())
    newer[2] = 9
    with pytest.raises(UnsupportedMessage, match="version 9"):
        Frame.from_bytes(bytes(newer), Kind.REPLY)
    others = {
        "stale": Frame(Kind.REQUEST, 4, 7, b"12345678"),
        "mismatch": Frame(Kind.REQUEST, 3, 8, b"12345678"),
    }
    for cause, expected in others.items():
        with pytest.raises(SideInformationMismatch) as error:
            FRAME.check_belongs_to(expected)
        assert cause_of(error.value) == cause
    with pytest.raises(SideInformationMismatch, match="another model") as error:
        FRAME.check_belongs_to(Frame(Kind.REQUEST, 3, 7, b"87654321"))
    assert not isinstance(error.value, WrongRound)
