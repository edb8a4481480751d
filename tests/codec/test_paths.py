"""The codec with memory: which path it takes, and what that carries."""

import itertools

import numpy as np
import pytest
from scipy import stats

from klms import (
    Bernoulli,
    Blocks,
    Codec,
    CorruptMessage,
    Gaussian,
    SharedKey,
    UnsupportedMessage,
    adaptive_blocks,
    fixed_blocks,
    inspect,
)
from klms.benchmarks.codec import survived
from klms.errors import InvalidArgument
from tests.codec import reference
from tests.support.messages import KEY, example, resealed

BITS, MEMORY, BLOCKS = 1, 2, 5


def scores_of_paths(q, p, key: SharedKey, blocks: Blocks) -> dict[tuple[int, ...], float]:
    """The score of every path through a small trellis, by the second decoder."""
    found = {}
    for path in itertools.product(range(1 << BITS), repeat=len(blocks)):
        candidate, total = 0, 0.0
        for m, k in enumerate(path):
            candidate = (candidate << BITS | k) % (1 << (BITS + MEMORY))
            start, end = int(blocks.bounds[m]), int(blocks.bounds[m + 1])
            words = reference.candidate_words(key, m, start, end - start, candidate)
            total += sum(reference.score(q, p, start + o, u) for o, u in enumerate(words))
        found[path] = total
    return found


def small_case(family: str):
    rng = np.random.default_rng(4)
    d = 4 * BLOCKS
    if family == "bernoulli":
        q, p = Bernoulli(rng.uniform(0.35, 0.65, d)), Bernoulli(rng.uniform(0.4, 0.6, d))
    else:
        q, p = Gaussian(rng.normal(0, 0.5, d), 1.0), Gaussian(np.zeros(d), 1.0)
    return q, p, fixed_blocks(d, 4)


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("seed", range(6))
def test_greedy_takes_the_best_of_all_paths(family, seed):
    q, p, blocks = small_case(family)
    key = SharedKey(seed, 1, 1)
    scores = scores_of_paths(q, p, key, blocks)
    chosen = Codec(bits=BITS, memory=MEMORY, selection="greedy").choose(q, p, blocks, key=key)
    assert scores[tuple(chosen.indices.tolist())] >= max(scores.values()) - 0.02


def test_sample_draws_a_path_from_the_softmax_over_all_paths():
    """A chi-square test over 32 paths, with a false-alarm rate of 1e-6."""
    q, p, blocks = small_case("bernoulli")
    scores = scores_of_paths(q, p, KEY, blocks)
    codec = Codec(bits=BITS, memory=MEMORY)
    rng = np.random.default_rng(0)
    counts = dict.fromkeys(scores, 0)
    draws = 6000
    for _ in range(draws):
        counts[tuple(codec.choose(q, p, blocks, key=KEY, rng=rng).indices.tolist())] += 1
    expected = np.exp(np.array(list(scores.values())))
    expected *= draws / expected.sum()
    assert expected.min() > 5
    assert stats.chisquare(list(counts.values()), expected).pvalue > 1e-6


@pytest.mark.parametrize(
    ("selection", "bits", "memory", "least"),
    [("sample", 4, 4, 0.78), ("greedy", 4, 4, 0.89), ("sample", 4, 6, 0.82), ("greedy", 4, 6, 0.91)],
)
def test_more_of_the_update_survives_than_without_memory(selection, bits, memory, least):
    """At KL = bits; 2,500 blocks, whose mean has a deviation of 0.006. Without memory 8 bits carry 0.74 and 0.85."""
    with_memory = survived(bits, memory, selection, d=200_000)
    assert with_memory > least
    assert with_memory > survived(8, 0, selection, d=200_000)


def test_matched_carries_all_of_the_update_where_it_can():
    """With KL = 0.7 of the bits, `sample` carries too little and `greedy` too much."""
    shares = {
        selection: survived(4, 4, selection, kl_over_bits=0.7, d=200_000)
        for selection in ("sample", "matched", "greedy")
    }
    assert shares["sample"] < 0.96 < shares["matched"] < 1.03 < shares["greedy"]


def test_without_memory_nothing_changes():
    message, _, _ = example("bernoulli")
    assert inspect(message).version == 1
    assert inspect(message).memory == 0


GOLDEN = {
    "bernoulli": "4b4c0200 01340000 14000000 04000000 88c3b5e8 181c9034 b5c1a53d 23150a65 4f454a",
    "gaussian": "4b4c0200 03340000 14000000 04000000 832a1f29 d8f8ef84 4fb7de3e 754f0a56 95f0c5",
}


@pytest.mark.parametrize("family", GOLDEN)
def test_golden_bytes_with_memory(family):
    message, p, blocks = example(family, memory=3)
    assert message.hex(" ", -4) == GOLDEN[family]
    np.testing.assert_array_equal(
        Codec().decode(message, p, key=KEY, blocks=blocks), reference.decode(message, p, KEY, blocks)
    )


@pytest.mark.parametrize("byte", [0x04, 0x5F, 0xFF])
def test_impossible_bits_and_memory_are_refused(byte):
    """No memory at all, 16 bits with 5 of memory, 16 bits with 15."""
    message, p, blocks = example("bernoulli", memory=3)
    changed = bytearray(message)
    changed[5] = byte
    with pytest.raises(CorruptMessage):
        Codec().decode(resealed(bytes(changed)), p, key=KEY, blocks=blocks)
    changed[2] = 3
    with pytest.raises(UnsupportedMessage):
        inspect(resealed(bytes(changed)))


def test_bits_and_memory_share_sixteen_bits():
    Codec(bits=1, memory=15)
    with pytest.raises(InvalidArgument, match="memory"):
        Codec(bits=9, memory=8)


@pytest.mark.parametrize("group", [2, 3, 7])
def test_groups_carry_one_size_per_piece(group):
    """The receiver divides the pieces as the sender did, and the map costs fewer bytes."""
    rng = np.random.default_rng(group)
    q, p = Bernoulli(rng.uniform(0.3, 0.7, 5000)), Bernoulli(np.full(5000, 0.5))
    codec = Codec(bits=3, memory=3)
    blocks = adaptive_blocks(q.kl(p), target=1.0, group=group)
    alone = adaptive_blocks(q.kl(p), target=1.0)
    assert np.diff(blocks.pieces.bounds).sum() == 5000
    assert abs(len(blocks) - len(alone)) < 0.2 * len(alone)
    decoded = {}
    for name, cut in (("grouped", blocks), ("alone", alone)):
        message = codec.encode(q, p, cut, key=KEY, rng=rng, send_blocks=True)
        decoded[name] = codec.read(message, p, key=KEY)
        assert decoded[name].blocks == cut
        np.testing.assert_array_equal(decoded[name].vector, reference.decode(message, p, KEY, cut))
    assert decoded["grouped"].header.block_size_bytes < 0.7 * decoded["alone"].header.block_size_bytes


def test_a_group_that_does_not_fit_is_refused():
    q, p, _ = small_case("bernoulli")
    codec = Codec(bits=2, memory=2, selection="greedy")
    message = codec.encode(q, p, adaptive_blocks(q.kl(p), 0.01, group=2), key=KEY, send_blocks=True)
    section = 28
    assert message[section] == 2
    for group in (0, 3, 255):
        changed = bytearray(message)
        changed[section] = group
        with pytest.raises(CorruptMessage):
            codec.decode(resealed(bytes(changed)), p, key=KEY)
    with pytest.raises(InvalidArgument, match="divide"):
        Blocks([0, 1, 4], group=2)
