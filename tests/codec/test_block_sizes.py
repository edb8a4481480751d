import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms import MAX_BLOCK_SIZE, CorruptMessage, adaptive_blocks
from klms.codec.block_sizes import pack_sizes, unpack_sizes

sizes = st.lists(
    st.one_of(st.integers(1, 40), st.sampled_from([255, 256, 4096]), st.integers(1, MAX_BLOCK_SIZE)),
    min_size=1,
    max_size=80,
).map(np.array)


def entropy_bytes(values: np.ndarray) -> float:
    _, counts = np.unique(values, return_counts=True)
    return float(-(counts * np.log2(counts / counts.sum())).sum() / 8)


@given(sizes)
def test_round_trip(values):
    section = pack_sizes(values)
    np.testing.assert_array_equal(unpack_sizes(section, values.size, int(values.sum())), values)


def kl_like_training(d: int, mean: float, rng: np.random.Generator) -> np.ndarray:
    """Squared normal moves: the KL of small updates, coordinate by coordinate."""
    return rng.chisquare(1, d) * mean


rng = np.random.default_rng(0)
LAYERS = np.concatenate([kl_like_training(n, m, rng) for n, m in [(8_000, 0.2), (2_000_000, 0.004), (80_000, 0.05)]])
CASES = {
    "8 bits, one layer": adaptive_blocks(kl_like_training(420_000, 0.02, rng), 8.0).sizes,
    "2 bits, one layer": adaptive_blocks(kl_like_training(22_000, 0.1, rng), 2.0).sizes,
    "heavy tails": adaptive_blocks(np.exp(rng.normal(-4, 2, 1_000_000)), 8.0).sizes,
    "nearly even": adaptive_blocks(rng.uniform(0.015, 0.025, 420_000), 8.0).sizes,
    "three layers": adaptive_blocks(LAYERS, 8.0).sizes,
    "five sizes": rng.integers(6, 11, 1000),
    "200 sizes": rng.integers(100, 300, 1000),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_cost_at_most_five_percent_above_their_entropy(name):
    values = CASES[name]
    assert values.size >= 1000
    assert len(pack_sizes(values)) <= 1.05 * entropy_bytes(values)


def test_sizes_that_are_nearly_all_the_same_cost_nearly_nothing():
    values = adaptive_blocks(LAYERS / 4, 8.0, 256).sizes
    assert np.mean(values == 256) > 0.95
    assert len(pack_sizes(values)) <= entropy_bytes(values) + 64
    assert len(pack_sizes(np.full(10_000, 500))) <= 64


@given(st.binary(max_size=60), st.integers(1, 50), st.integers(1, 5000))
def test_any_bytes_give_sizes_that_fit_or_a_typed_error(section, count, d):
    try:
        values = unpack_sizes(section, count, max(d, count))
    except CorruptMessage:
        return
    assert values.size == count
    assert values.sum() == max(d, count)
    assert 1 <= values.min() <= values.max() <= MAX_BLOCK_SIZE


@given(sizes, st.binary(min_size=1, max_size=12))
def test_appended_bytes_never_change_what_is_read(values, tail):
    try:
        read = unpack_sizes(pack_sizes(values) + tail, values.size, int(values.sum()))
    except CorruptMessage:
        return
    np.testing.assert_array_equal(read, values)
