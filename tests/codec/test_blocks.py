import math
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from klms import MAX_BLOCK_SIZE, BlockMerger, Blocks, UpdateRule, adaptive_blocks, aggregate_blocks, fixed_blocks
from klms.errors import InvalidArgument
from tests.codec.strategies import partitions

kls = arrays(np.float64, st.integers(1, 300), elements=st.floats(0, 20))


def assert_partition(blocks: Blocks, d: int, max_size: int = MAX_BLOCK_SIZE) -> None:
    covered = np.concatenate([np.arange(a, b) for a, b in zip(blocks.bounds[:-1], blocks.bounds[1:], strict=True)])
    np.testing.assert_array_equal(covered, np.arange(d))
    assert blocks.sizes.sum() == blocks.d == d
    assert 1 <= blocks.sizes.min() <= blocks.sizes.max() <= max_size


@given(st.integers(1, 5000), st.integers(1, MAX_BLOCK_SIZE))
def test_fixed_blocks_partition(d, size):
    blocks = fixed_blocks(d, size)
    assert_partition(blocks, d, size)
    assert len(blocks) == -(-d // size)
    assert (blocks.sizes[:-1] == size).all()


@given(kls, st.floats(0.01, 50), st.integers(1, 400))
def test_adaptive_blocks_partition_and_stop_where_they_should(kl, target, max_size):
    blocks = adaptive_blocks(kl, target, max_size)
    assert_partition(blocks, kl.size, max_size)
    for a, b in zip(blocks.bounds[:-1], blocks.bounds[1:], strict=True):
        before = 0.0
        for value in kl[a : b - 1]:
            before += value
        assert before < target
        assert before + kl[b - 1] >= target or b - a == max_size or b == kl.size


@given(kls, st.floats(0.01, 50), st.integers(1, 400), st.integers(1, 5), st.lists(st.integers(0, 300)))
def test_blocks_do_not_depend_on_the_parts_in_which_the_kl_comes(kl, target, max_size, group, cuts):
    parts = [part for part in np.split(kl, sorted(cut for cut in cuts if cut < kl.size)) if part.size]
    assert adaptive_blocks(iter(parts), target, max_size, group) == adaptive_blocks(kl, target, max_size, group)


@pytest.mark.parametrize(
    ("kl", "target", "max_size", "bounds"),
    [
        ([0.0], 1.0, 4, [0, 1]),
        ([9.0], 1.0, 4, [0, 1]),
        ([0.0] * 5, 1.0, 2, [0, 2, 4, 5]),
        ([0.0] * 5, 1.0, 65536, [0, 5]),
        ([0.1, 9.0, 0.1, 0.1], 1.0, 8, [0, 2, 4]),
    ],
    ids=["d=1", "d=1 above target", "all zero", "one block", "one coordinate above target"],
)
def test_edges(kl, target, max_size, bounds):
    assert adaptive_blocks(kl, target, max_size).bounds.tolist() == bounds


@given(
    st.lists(st.tuples(kls, st.floats(0.1, 10)), min_size=1, max_size=5),
    st.integers(1, 60),
    st.sampled_from(["location", "count"]),
)
def test_aggregate_is_a_partition_with_blocks_like_the_clients(clients, max_size, by):
    d = min(kl.size for kl, _ in clients)
    each = [adaptive_blocks(kl[:d], target, max_size) for kl, target in clients]
    merged = aggregate_blocks(each, by)
    assert_partition(merged, d, max_size)
    assert len(merged) <= max(map(len, each))
    if by == "count":
        assert abs(len(merged) - np.mean([len(blocks) for blocks in each])) <= 1 + np.sum(
            np.diff(np.sort(np.concatenate([b.bounds[1:-1] for b in each]))) == 0
        )


def merged_at_once(each: list[Blocks], by: str) -> list[int]:
    """The definitions of the two ways to merge, with all maps at hand."""
    inner = [blocks.bounds[1:-1].tolist() for blocks in each]
    if by == "count":
        merged = sorted(x for bounds in inner for x in bounds)[len(each) // 2 :: len(each)]
    else:
        columns = [[bounds[m] for bounds in inner if m < len(bounds)] for m in range(max(map(len, inner)))]
        merged = [math.ceil(sum(column) / len(column)) for column in columns]
    return [0, *sorted(set(merged) - {each[0].d}), each[0].d]


@given(st.data(), st.integers(1, 60), st.integers(1, 7), st.sampled_from(["location", "count"]))
def test_merging_one_by_one_is_merging_at_once(data, d, clients, by):
    each = [data.draw(partitions(d)) for _ in range(clients)]
    merger = BlockMerger(d, by)
    for n, blocks in enumerate(each, 1):
        merger.add(blocks)
        assert merger.merged().bounds.tolist() == merged_at_once(each[:n], by)
    assert aggregate_blocks(each, by) == merger.merged()


@pytest.mark.parametrize("by", ["location", "count"])
def test_merging_takes_no_more_memory_for_more_clients(by):
    d = 20_000
    merger, each = BlockMerger(d, by), [fixed_blocks(d, size) for size in (3, 4, 5)]
    for blocks in each:
        merger.add(blocks)
    tracemalloc.start()
    for _ in range(20):
        merger.add(fixed_blocks(d, 3))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2 * 8 * d  # two arrays of running sums at most, whereas 20 maps would take 1 MB


@given(kls)
def test_clients_that_agree_are_followed(kl):
    blocks = adaptive_blocks(kl, 3.0, 50)
    for by in ("location", "count"):
        assert aggregate_blocks([blocks, blocks, blocks], by) == blocks


def test_merging_by_count_keeps_the_small_blocks_of_a_late_layer():
    """Two clients, ten blocks apart in a first layer: by location the second layer's small blocks are lost."""
    rng = np.random.default_rng(0)
    late = np.concatenate([np.full(10_000, 0.01), np.full(100, 2.0)])
    each = [
        adaptive_blocks(late * np.append(rng.uniform(0.5, 1.5) * np.ones(10_000), np.ones(100)), 4.0) for _ in range(8)
    ]
    kls = {by: np.add.reduceat(late, aggregate_blocks(each, by).bounds[:-1]).max() for by in ("location", "count")}
    assert kls["count"] < 10
    assert kls["location"] > 20


def test_aggregate_means_are_rounded_up_and_sorted():
    few, many = Blocks([0, 9, 12]), Blocks([0, 2, 4, 6, 8, 12])
    # means: ceil((9 + 2) / 2), then 4, 6, 8 of the only client that goes on.
    assert aggregate_blocks([few, many]).bounds.tolist() == [0, 4, 6, 8, 12]


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Blocks([0]), "bounds"),
        (lambda: Blocks([1, 2]), "bounds"),
        (lambda: Blocks([0, 2, 2]), "bounds"),
        (lambda: Blocks([0.0, 2.0]), "bounds"),
        (lambda: Blocks([0, MAX_BLOCK_SIZE + 1]), "65536"),
        (lambda: fixed_blocks(0, 1), "d must"),
        (lambda: fixed_blocks(10, 2.5), "size"),
        (lambda: Blocks.of_sizes([1.9, 2.9]), "integers"),
        (lambda: adaptive_blocks([1.0], 1.0, 2.5), "max_size"),
        (lambda: UpdateRule(1.0, 2.0).triggered([np.nan]), "mean_kls"),
        (lambda: fixed_blocks(1, 0), "size"),
        (lambda: fixed_blocks(1, MAX_BLOCK_SIZE + 1), "size"),
        (lambda: adaptive_blocks([], 1.0), "kl"),
        (lambda: adaptive_blocks([np.nan], 1.0), "kl"),
        (lambda: adaptive_blocks([-1.0], 1.0), "kl"),
        (lambda: adaptive_blocks([1.0], 0.0), "target"),
        (lambda: adaptive_blocks([1.0], np.inf), "target"),
        (lambda: adaptive_blocks([1.0], 1.0, MAX_BLOCK_SIZE + 1), "max_size"),
        (lambda: aggregate_blocks([]), "clients"),
        (lambda: aggregate_blocks([Blocks([0, 1]), Blocks([0, 2])]), "clients"),
        (lambda: aggregate_blocks([Blocks([0, 1])], by="size"), "way to merge"),
        (lambda: BlockMerger(0), "d must"),
        (lambda: BlockMerger(3).merged(), "at least one client"),
        (lambda: BlockMerger(3, "count").merged(), "at least one client"),
        (lambda: UpdateRule(2.0, 1.0), "low"),
        (lambda: UpdateRule(1.0, 2.0).triggered([]), "mean_kls"),
    ],
)
def test_a_bad_argument_is_named(make, argument):
    with pytest.raises(InvalidArgument, match=argument):
        make()


def test_the_update_rule_looks_at_the_mean_over_clients():
    rule = UpdateRule(low=4.0, high=8.0)
    assert not rule.triggered([3.0, 6.0])
    assert not rule.triggered([4.0])
    assert not rule.triggered([8.0])
    assert rule.triggered([3.0, 4.9])
    assert rule.triggered([16.1, 0.0])


def test_blocks_cannot_be_changed():
    blocks = Blocks([0, 1, 3])
    for array in (blocks.bounds, blocks.sizes, pickle.loads(pickle.dumps(blocks)).sizes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_blocks_compare_by_value():
    assert Blocks([0, 1, 3]) == Blocks.of_sizes([1, 2])
    assert hash(Blocks([0, 1, 3])) == hash(Blocks.of_sizes([1, 2]))
    assert Blocks([0, 1, 3]) != Blocks([0, 2, 3])
    assert "2 blocks over 3 coordinates" in repr(Blocks([0, 1, 3]))
