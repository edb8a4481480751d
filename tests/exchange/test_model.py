"""A model as named arrays, and the head of its updates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms.errors import CorruptMessage, InvalidArgument, KLMSError
from klms.exchange.model import Apart, statistics_of

ARRAYS = {
    "conv": np.ones((3, 4), dtype=np.float32),
    "bias": np.arange(3, dtype=np.float32),
    "variance": np.ones(3, dtype=np.float64),
    "steps": np.array(7, dtype=np.int64),
    "table": np.zeros(5000, dtype=np.float16),
    "none": np.zeros((0, 4), dtype=np.float32),
    "flags": np.array([[True, False]]),
}
MODEL = Apart.of(ARRAYS).model(ARRAYS, None)


def trained(**changes):
    return {**{name: array.copy() for name, array in ARRAYS.items()}, **changes}


def test_everything_is_compressed_but_integers_and_what_cannot_bear_noise():
    assert MODEL.layout.names == ("conv", "bias", "table")
    assert MODEL.layout.d == 5015
    assert MODEL.size == 12 + 3 + 3 + 1 + 5000 + 0 + 2
    assert MODEL.head_bytes == 1 + len(ARRAYS) + 4 * 3 + 8 + 2  # a client trains in float32 at most
    at_few_bits = Apart.of(ARRAYS).model(ARRAYS, 0.1)
    assert at_few_bits.layout.names == MODEL.layout.names
    assert at_few_bits.head_bytes == 1 + len(ARRAYS) + 4 + 3 + 8 + 2  # a step, and a byte for each variance


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("norm.running_mean", [-1, 1], True),
        ("batch_normalization/moving_variance", [1, 1], True),
        ("3", [0.5, 2], True),  # of a list of arrays, whose names say nothing
        ("3", [0.5, -2], False),
        ("3", [0, 0], False),
        ("norm.weight", [1, 1], False),
        ("layers.0.layer_norm.scale", [1, 1], False),
        ("3", [[1, 1]], False),
        ("lstm.bias_hh_l0", [0, 1], False),
        ("theta", [0.5] * 5000, False),  # more than a normalisation layer has channels
    ],
)
def test_running_statistics_are_known_by_their_names_or_may_be_some(name, values, expected):
    arrays = {name: np.array(values, dtype=np.float32)}
    assert (statistics_of(arrays) == {name}) is expected


def test_an_update_comes_back_in_the_client_s_own_dtypes():
    new = trained(conv=ARRAYS["conv"] + 0.5, variance=np.full(3, 0.25, dtype=np.float32))
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
        MODEL.read_head(bytes([1] + [7] * len(ARRAYS)))
    other = MODEL.write_head(trained(conv=ARRAYS["conv"].astype(np.float64)), np.random.default_rng(0))
    assert len(other) == len(head) + len(ARRAYS)  # only types that differ from the known ones are listed
    assert MODEL.read_head(other)[0]["conv"] == np.float64
    dtypes, unchanged = MODEL.read_head(MODEL.write_head(trained(), np.random.default_rng(0)))
    update = np.zeros(MODEL.layout.d, dtype=np.float32)
    update[-1] = np.inf
    with pytest.raises(CorruptMessage, match="table is not finite"):
        MODEL.apply(update, dtypes, unchanged)


def test_noise_does_not_carry_float16_beyond_its_range():
    dtypes, unchanged = MODEL.read_head(MODEL.write_head(trained(), np.random.default_rng(0)))
    found = MODEL.apply(np.full(MODEL.layout.d, 1e5, dtype=np.float32), dtypes, unchanged)
    assert (found["table"] == np.finfo(np.float16).max).all()


@pytest.mark.parametrize("new", [[-1.0, -2.0, 0.5], [0.0, 0.001, 0.5]])
@pytest.mark.parametrize("start", [[0.5, 0.5, 0.5], [-0.5, 0.5, 0.5]])
def test_only_arrays_that_were_trained_without_negative_entries_arrive_without_them(start, new):
    arrays = {"running_mean": np.array(start, dtype=np.float32), "weight": np.zeros((100, 100), dtype=np.float32)}
    model = Apart.of(arrays).model(arrays, 1.0)
    sent = {**arrays, "running_mean": np.array(new, dtype=np.float32)}
    for seed in range(20):
        _, unchanged = model.read_head(model.write_head(sent, np.random.default_rng(seed)))
        np.testing.assert_allclose(unchanged["running_mean"], new, atol=2.5 / 127)
        assert min(new) < 0 or (unchanged["running_mean"] >= 0).all()


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


def test_running_statistics_are_sent_coarsely() -> None:
    arrays = {
        "norm.weight": np.ones(8, np.float32),
        "norm.running_mean": np.zeros(8, np.float32),
        "norm.running_var": np.ones(8, np.float32),
        "norm.num_batches_tracked": np.array(3),
    }
    model = Apart.of(arrays).model(arrays, 0.1)
    assert model.layout.names == ("norm.weight",)
    trained = {**arrays, "norm.running_mean": np.linspace(-1, 1, 8, dtype=np.float32)}
    _, beside = model.read_head(model.write_head(trained, np.random.default_rng(0)))
    assert np.allclose(beside["norm.running_mean"], trained["norm.running_mean"], atol=1 / 127)
    assert np.array_equal(beside["norm.running_var"], arrays["norm.running_var"])
