import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")

from klms.codec import CorruptMessage, KLMSError
from klms.flower.model import Model

ARRAYS = {
    "conv": np.ones((3, 4), dtype=np.float32),
    "bias": np.arange(3, dtype=np.float32),
    "variance": np.ones(3, dtype=np.float64),
    "steps": np.array(7, dtype=np.int64),
    "table": np.zeros(5000, dtype=np.float16),
    "none": np.zeros((0, 4), dtype=np.float32),
    "flags": np.array([[True, False]]),
}
MODEL = Model(ARRAYS)


def trained(**changes):
    return {**{name: array.copy() for name, array in ARRAYS.items()}, **changes}


def test_matrices_and_long_vectors_are_compressed_and_the_rest_passes():
    assert MODEL.layout.names == ("conv", "table")
    assert MODEL.layout.d == 5012
    assert MODEL.size == 12 + 3 + 3 + 1 + 5000 + 0 + 2
    assert Model(ARRAYS, small=2).layout.names == ("conv", "bias", "variance", "table")
    assert MODEL.head_bytes == len(ARRAYS) + 4 * 3 + 4 * 3 + 8 + 2  # a client trains in float32 at most


def test_an_update_comes_back_in_the_client_s_own_dtypes():
    new = trained(conv=ARRAYS["conv"] + 0.5, bias=ARRAYS["bias"] * 2, variance=np.full(3, 0.25, dtype=np.float32))
    new["steps"] = np.array(9, dtype=np.int32)
    update = MODEL.difference(new)
    assert update[:12].tolist() == [0.5] * 12
    assert not update[12:].any()
    dtypes, kept, message = MODEL.read(MODEL.write(new, b"message"))
    assert message == b"message"
    restored = MODEL.apply(update, dtypes, kept)
    assert list(restored) == list(ARRAYS)
    for name, array in new.items():
        assert restored[name].dtype == array.dtype, name
        np.testing.assert_array_equal(restored[name], array)


def test_replies_with_other_arrays_are_refused_where_they_are_made():
    without = trained()
    del without["bias"]
    with pytest.raises(ValueError, match="these differ: bias"):
        MODEL.difference(without)
    with pytest.raises(ValueError, match="conv was received as"):
        MODEL.difference(trained(conv=np.ones((4, 3), dtype=np.float32)))
    with pytest.raises(ValueError, match="complex64"):
        MODEL.difference(trained(bias=np.zeros(3, dtype=np.complex64)))
    with pytest.raises(ValueError, match="conv was received as numbers with a point"):
        MODEL.difference(trained(conv=np.ones((3, 4), dtype=np.int32)))


def test_what_would_poison_an_average_is_refused_where_it_arrives():
    body = MODEL.write(trained(variance=np.array([1.0, np.nan, 1.0])), b"")
    with pytest.raises(CorruptMessage, match="variance is not finite"):
        MODEL.read(body)
    with pytest.raises(CorruptMessage, match="conv cannot be int64"):
        MODEL.read(bytes([7]) + body[1:])


@given(st.binary(max_size=60))
def test_garbage_is_a_typed_error_or_the_rest_of_it_is_the_message(body):
    try:
        _, kept, message = MODEL.read(body)
    except KLMSError:
        return
    assert len(message) <= len(body) - len(ARRAYS)
    assert all(kept[name].shape == ARRAYS[name].shape for name in kept)
