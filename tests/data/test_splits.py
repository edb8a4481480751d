"""Splits: disjoint, sorted, nobody empty, the same for the same seed, and each true to its own rule."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms.data.splits import Indices, dirichlet, iid, natural, paper_noniid
from klms.errors import InvalidArgument

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)
SEED = st.integers(0, 2**32)


def check(parts: Indices, n: int, clients: int) -> npt.NDArray[np.int64]:
    assert len(parts) == clients
    for part in parts:
        assert part.dtype == np.int64
        assert part.size > 0
        assert (np.diff(part) > 0).all()
    every = np.concatenate(parts)
    assert np.unique(every).size == every.size
    assert 0 <= every.min() <= every.max() < n
    return every


def same(one: Indices, other: Indices) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(st.data(), st.integers(1, 200), SEED)
def test_iid(data: st.DataObject, n: int, seed: int) -> None:
    clients = data.draw(st.integers(1, n))
    parts = iid(n, clients, seed)
    assert check(parts, n, clients).size == n
    assert max(part.size for part in parts) - min(part.size for part in parts) <= 1
    assert same(parts, iid(n, clients, seed))


@given(st.data(), LABELS, st.integers(1, 8), SEED)
def test_paper_noniid(data: st.DataObject, labels: npt.NDArray[np.int64], c_max: int, seed: int) -> None:
    clients = data.draw(st.integers(1, labels.size))
    parts = paper_noniid(labels, clients, c_max, seed)
    check(parts, labels.size, clients)
    assert max(np.unique(labels[part]).size for part in parts) <= c_max
    assert same(parts, paper_noniid(labels, clients, c_max, seed))


@pytest.mark.parametrize(("classes", "c_max"), [(10, 2), (10, 4), (10, 10), (100, 20), (100, 40)])
@pytest.mark.parametrize("seed", range(5))
def test_the_papers_sizes(classes: int, c_max: int, seed: int) -> None:
    # Sizes as j_n / sum(j): from 10 to 100 parts of about 5,500, so from 90 to 910 of 50,000.
    labels = np.arange(50_000) % classes
    parts = paper_noniid(labels, 100, c_max, seed)
    sizes = np.array([part.size for part in parts])
    assert sizes.sum() >= 0.99 * labels.size, "nearly every example is dealt"
    j = np.random.default_rng(seed).integers(10, 101, 100)
    planned = 50_000 * j // j.sum()
    assert (sizes <= planned).all()
    assert np.count_nonzero(sizes == planned) >= 90
    assert np.median([np.unique(labels[part]).size for part in parts]) == c_max


@given(st.data(), LABELS, st.floats(1e-6, 1e4), SEED)
def test_dirichlet(data: st.DataObject, labels: npt.NDArray[np.int64], alpha: float, seed: int) -> None:
    clients = data.draw(st.integers(1, labels.size))
    parts = dirichlet(labels, clients, alpha, seed)
    assert check(parts, labels.size, clients).size == labels.size
    assert same(parts, dirichlet(labels, clients, alpha, seed))


@pytest.mark.parametrize("alpha", [1e-300, 1e-12])
def test_dirichlet_with_next_to_no_alpha_gives_each_class_to_one_client(alpha: float) -> None:
    labels = np.repeat(np.arange(3), 50)
    parts = dirichlet(labels, 3, alpha, seed=4)
    # A client that won no class is given one example, so at most two examples are not with their class.
    largest = [max(np.count_nonzero(labels[part] == label) for part in parts) for label in range(3)]
    assert min(largest) >= 48


def test_dirichlet_with_the_largest_alpha_is_even() -> None:
    parts = dirichlet(np.repeat(np.arange(3), 40), 4, 1.7e308, seed=4)
    assert [part.size for part in parts] == [30] * 4


def test_a_smaller_alpha_is_more_uneven() -> None:
    labels = np.arange(10_000) % 10

    def most_common_share(alpha: float) -> float:
        parts = dirichlet(labels, 20, alpha, seed=1)
        return float(np.mean([np.bincount(labels[part]).max() / part.size for part in parts]))

    even, mixed, uneven = (most_common_share(alpha) for alpha in (1000.0, 1.0, 0.05))
    assert even < 0.2 < mixed < 0.5 < uneven


@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=80).map(np.array), SEED)
def test_natural(data: st.DataObject, owners: npt.NDArray[np.int64], seed: int) -> None:
    authors, counts = np.unique(owners, return_counts=True)
    clients = data.draw(st.integers(1, authors.size))
    parts = natural(owners, clients, seed)
    check(parts, owners.size, clients)
    for part in parts:
        assert np.array_equal(part, np.flatnonzero(owners == owners[part[0]])), "one author, and all of that author"
    assert sorted(part.size for part in parts) == sorted(counts)[authors.size - clients :]
    assert same(parts, natural(owners, clients, seed))


SPLITS: list[Callable[[int], Indices]] = [
    lambda seed: iid(1000, 10, seed),
    lambda seed: paper_noniid(np.arange(1000) % 10, 10, 3, seed),
    lambda seed: dirichlet(np.arange(1000) % 10, 10, 0.5, seed),
    lambda seed: natural(np.arange(1000) % 10, 10, seed),
]


@pytest.mark.parametrize("split", SPLITS)
def test_another_seed_is_another_split(split: Callable[[int], Indices]) -> None:
    assert [part.tolist() for part in split(1)] != [part.tolist() for part in split(2)]


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: iid(3, 4, 0), "clients"),
        (lambda: iid(3, 0, 0), "clients"),
        (lambda: paper_noniid([0, 1], 3, 1, 0), "clients"),
        (lambda: paper_noniid([0, 1], 1, 0, 0), "c_max"),
        (lambda: paper_noniid([[0, 1]], 1, 1, 0), "natural"),
        (lambda: dirichlet([0.5, 1.0], 1, 1.0, 0), "integer"),
        (lambda: dirichlet([0, 1], 1, 0.0, 0), "alpha"),
        (lambda: dirichlet([0, 1], 1, float("nan"), 0), "alpha"),
        (lambda: iid(3, 1.5, 0), "clients"),  # type: ignore[arg-type]
        (lambda: iid(3, True, 0), "clients"),
        (lambda: iid(0, 1, 0), "examples"),
        (lambda: iid(3, 1, None), "seed"),  # type: ignore[arg-type]
        (lambda: iid(3, 1, -1), "seed"),
        (lambda: paper_noniid([0, 1], 1, 1.5, 0), "c_max"),  # type: ignore[arg-type]
        (lambda: dirichlet([0, 1], 1, float("inf"), 0), "alpha"),
        (lambda: dirichlet([0, 1], 1, "1", 0), "alpha"),  # type: ignore[arg-type]
        (lambda: natural([0, 1], 3, 0), "author"),
        (lambda: natural([], 1, 0), "integer"),
    ],
)
def test_what_cannot_be_split_is_said(call: Callable[[], Indices], word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        call()
