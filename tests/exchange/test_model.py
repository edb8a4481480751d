"""A model as named arrays, and the head of its updates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms.errors import CorruptMessage, InvalidArgument, KLMSError
from klms.exchange.model import Model

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


def test_matrices_and_long_vectors_are_compressed_and_the_rest_is_sent_unchanged():
    assert MODEL.layout.names == ("conv", "table")
    assert MODEL.layout.d == 5012
    assert MODEL.size == 12 + 3 + 3 + 1 + 5000 + 0 + 2
    assert Model(ARRAYS, small=2).layout.names == ("conv", "bias", "variance", "table")
    assert MODEL.head_bytes == len(ARRAYS) + 4 * 3 + 4 * 3 + 8 + 2  # a client trains in float32 at most


def test_an_update_comes_back_in_the_client_s_own_dtypes():
    new = trained(conv=ARRAYS["conv"] + 0.5, bias=ARRAYS["bias"] * 2, variance=np.full(3, 0.25, dtype=np.float32))
    new["steps"] = np.array(9, dtype=np.int32)
    MODEL.check(new)
    update = MODEL.difference(new)
    assert update[:12].tolist() == [0.5] * 12
    assert not update[12:].any()
    restored = MODEL.apply(update, *MODEL.read_head(MODEL.write_head(new, np.random.default_rng(0))))
    assert list(restored) == list(ARRAYS)
    for name, array in new.items():
        assert restored[name].dtype == array.dtype, name
        np.testing.assert_array_equal(restored[name], array)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conv": np.ones((4, 3), dtype=np.float32)}, r"conv was received as \(3, 4\); the reply has \(4, 3\)"),
        ({"bias": np.zeros(3, dtype=np.complex64)}, "complex64"),
        ({"conv": np.ones((3, 4), dtype=np.int32)}, "conv was received as floating-point numbers"),
    ],
)
def test_replies_with_other_arrays_are_refused_where_they_are_made(changes, words):
    with pytest.raises(InvalidArgument, match=words):
        MODEL.check(trained(**changes))


def test_what_would_poison_an_average_is_refused_where_it_arrives():
    head = MODEL.write_head(trained(variance=np.array([1.0, np.nan, 1.0])), np.random.default_rng(0))
    with pytest.raises(CorruptMessage, match="variance is not finite"):
        MODEL.read_head(head)
    with pytest.raises(CorruptMessage, match="conv cannot be int64"):
        MODEL.read_head(bytes([7]) + head[1:])
    dtypes, unchanged = MODEL.read_head(MODEL.write_head(trained(), np.random.default_rng(0)))
    with pytest.raises(CorruptMessage, match="table is not finite"):  # 1e5 is too large for float16
        MODEL.apply(np.full(MODEL.layout.d, 1e5, dtype=np.float32), dtypes, unchanged)


def test_a_head_that_is_too_short_or_too_long_is_refused():
    head = MODEL.write_head(trained(), np.random.default_rng(0))
    MODEL.read_head(head)
    for length in range(len(head)):
        with pytest.raises(CorruptMessage):
            MODEL.read_head(head[:length])
    with pytest.raises(CorruptMessage, match="1 bytes after the arrays"):
        MODEL.read_head(head + b"x")


@given(st.binary(max_size=60))
def test_garbage_is_a_typed_error_or_arrays_of_the_model(head):
    try:
        dtypes, unchanged = MODEL.read_head(head)
    except KLMSError:
        return
    assert dtypes.keys() <= ARRAYS.keys()
    assert all(unchanged[name].shape == ARRAYS[name].shape for name in unchanged)


def test_with_small_0_all_but_running_statistics_is_compressed() -> None:
    arrays = {
        "norm.weight": np.ones(8, np.float32),
        "norm.running_mean": np.zeros(8, np.float32),
        "norm.running_var": np.ones(8, np.float32),
        "norm.num_batches_tracked": np.array(3),
    }
    model = Model.for_bits(arrays, 0, frozenset({"norm.num_batches_tracked"}), 0.1)
    assert model.layout.names == ("norm.weight",)
    trained = {**arrays, "norm.running_mean": np.linspace(-1, 1, 8, dtype=np.float32)}
    _, beside = model.read_head(model.write_head(trained, np.random.default_rng(0)))
    assert np.allclose(beside["norm.running_mean"], trained["norm.running_mean"], atol=1 / 127)
    assert np.array_equal(beside["norm.running_var"], arrays["norm.running_var"])
