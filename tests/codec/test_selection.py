import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from klms.codec.selection import Batch, matching_beta, select


def choose(scores, rule, uniform=0.5, wanted=0.0):
    indices = np.empty(1, dtype=np.uint16)
    batch = Batch(0, np.array([scores], dtype=float), np.array([wanted]), np.empty(1))
    select(batch, rule, np.array([uniform]), indices)
    return int(indices[0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8))
def test_greedy_takes_the_first_best(scores):
    assert choose(scores, "greedy") == int(np.argmax(scores))


def test_sample_draws_from_the_softmax():
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 2, 16)
    counts = np.bincount([choose(scores, "sample", u) for u in rng.random(40_000)], minlength=16)
    expected = np.exp(scores) / np.exp(scores).sum() * 40_000
    assert chisquare(counts, expected).pvalue > 1e-6


@given(st.lists(st.floats(-1e4, 1e4), min_size=4, max_size=4), st.floats(0, 1, exclude_max=True))
def test_any_scores_give_a_candidate_that_is_not_hopeless(scores, uniform):
    k = choose(scores, "sample", uniform)
    assert scores[k] > max(scores) - 44


def test_shifting_all_scores_changes_nothing():
    scores = np.random.default_rng(1).normal(0, 3, 64)
    for u in np.linspace(0, 0.999, 50):
        assert choose(scores, "sample", u) == choose(scores + 512.0, "sample", u)


@given(st.integers(0, 2**32 - 1), st.floats(-1.0, 6.0))
def test_matched_solves_for_the_expected_score(seed, wanted):
    scores = np.random.default_rng(seed).normal(0, 3, 256)
    top = scores.max()
    wanted = min(wanted, top - 0.5)
    beta = matching_beta(scores - top, wanted - top)
    weights = np.exp(beta * (scores - top))
    mean = weights @ scores / weights.sum()
    if scores.mean() < wanted:
        assert mean == pytest.approx(wanted, abs=2e-3)
    else:
        assert beta < 1e-3  # even the plain mean is too high: no tilt is the closest


def test_matched_is_greedy_when_no_candidate_is_good_enough():
    scores = [0.0, 1.0, 2.0, 3.0]
    assert all(choose(scores, "matched", u, wanted=10.0) == 3 for u in np.linspace(0, 0.99, 20))
