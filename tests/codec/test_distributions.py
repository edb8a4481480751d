import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from klms import Bernoulli, Categorical, Gaussian
from klms.errors import InvalidArgument
from tests.codec import reference
from tests.codec.strategies import laws


@given(laws())
def test_kl_is_finite_and_not_negative(pair):
    q, p = pair
    kl = q.kl(p)
    assert kl.shape == (q.d,)
    assert np.isfinite(kl).all()
    assert (kl >= 0).all()
    assert (q.kl(q) < 1e-3).all()


@given(laws())
def test_kl_is_that_of_the_quantised_p(pair):
    q, p = pair
    if isinstance(q, Gaussian):
        ratio = q.std.astype(float) / p.std
        shift = (q.mean.astype(float) - p.mean) / p.std
        expected = ((ratio**2 + shift**2 - 1) / 2 - np.log(ratio)) / np.log(2)
    else:
        rows = [np.diff(reference.thresholds_of(p, i)) / 65536 for i in range(p.d)]
        given_q = [
            [q.probability[i], 1 - float(q.probability[i])] if isinstance(q, Bernoulli) else q.probabilities[:, i]
            for i in range(q.d)
        ]
        expected = [entropy(np.array(a, dtype=float), b, base=2) for a, b in zip(given_q, rows, strict=True)]
    np.testing.assert_allclose(q.kl(p), expected, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "law",
    [
        lambda r, d: Bernoulli(r.random(d)),
        lambda r, d: Categorical(r.dirichlet([1.0] * 3, d), values=[-1.0, 0.0, 1.0]),
        lambda r, d: Gaussian(r.standard_normal(d), r.random(d) + 0.5),
    ],
    ids=["bernoulli", "categorical", "gaussian"],
)
def test_kl_in_parts_is_the_kl(law, monkeypatch):
    monkeypatch.setattr("klms.codec.distributions._KL_PART", 30_000)
    rng = np.random.default_rng(0)
    q, p = law(rng, 70_001), law(rng, 70_001)
    parts = [part.copy() for part in q.kl_in_parts(p, threads=2)]
    assert [part.size for part in parts] == [30_000, 30_000, 10_001]
    np.testing.assert_array_equal(np.concatenate(parts), q.kl(p))


@given(laws())
def test_thresholds_leave_every_symbol_a_chance(pair):
    _, p = pair
    if isinstance(p, Gaussian):
        return
    for i in range(p.d):
        edges = [0, *p.thresholds[:, i].tolist(), 65536]
        assert edges == reference.thresholds_of(p, i)
        assert min(np.diff(edges)) >= 1


@given(laws())
def test_thresholds_alone_are_the_same_p(pair):
    q, p = pair
    if not isinstance(p, Categorical):
        return
    short = Categorical.quantised(p.thresholds, p.values)
    assert short.digest == p.digest == pickle.loads(pickle.dumps(short)).digest
    np.testing.assert_array_equal(q.kl(short), q.kl(p))
    np.testing.assert_allclose(short.probabilities, p.probabilities, atol=p.values.size / 65536)


@pytest.mark.parametrize("saturated", [0.0, 1.0])
def test_saturated_probabilities(saturated):
    sure, fair = Bernoulli([saturated]), Bernoulli([0.5])
    assert sure.kl(fair).item() == pytest.approx(1.0, abs=1e-5)
    assert fair.kl(sure).item() == pytest.approx(-0.5 * np.log2(4 * (1 / 65536) * (65535 / 65536)), rel=1e-3)
    assert sure.thresholds.item() == (1 if saturated == 0 else 65535)


def test_a_single_symbol_may_have_all_the_probability():
    law = Categorical([[0.0, 0.0, 1.0, 0.0]], [0, 1, 2, 3])
    assert law.thresholds[:, 0].tolist() == [1, 2, 65535]


def test_extreme_gaussians_do_not_overflow():
    wide, narrow = Gaussian([3e37], [3e37]), Gaussian([-3e37], [1e-45])
    assert np.isfinite(wide.kl(narrow)).all()
    assert np.isfinite(narrow.kl(wide)).all()


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Bernoulli([[0.5]]), "probability"),
        (lambda: Bernoulli([]), "probability"),
        (lambda: Bernoulli([0.5, np.nan]), "probability"),
        (lambda: Bernoulli([1.1]), "probability"),
        (lambda: Bernoulli([-0.1]), "probability"),
        (lambda: Categorical([0.5, 0.5], [0, 1]), "probabilities"),
        (lambda: Categorical([[1.0]], [0]), "probabilities"),
        (lambda: Categorical([[0.5, 0.6]], [0, 1]), "probabilities"),
        (lambda: Categorical([[0.5, np.inf]], [0, 1]), "probabilities"),
        (lambda: Categorical([[-0.5, 1.5]], [0, 1]), "probabilities"),
        (lambda: Categorical([[0.5, 0.5]], [0, 1, 2]), "values"),
        (lambda: Categorical([[0.5, 0.5]], [0, np.nan]), "values"),
        (lambda: Categorical(np.full((1, 257), 1 / 257), np.arange(257)), "probabilities"),
        (lambda: Categorical.quantised(np.array([[1], [1]], dtype=np.uint16), [0, 1, 2]), "thresholds"),
        (lambda: Categorical.quantised(np.array([[0], [1]], dtype=np.uint16), [0, 1, 2]), "thresholds"),
        (lambda: Categorical.quantised(np.array([[1]], dtype=np.uint16), [0, 1, 2]), "thresholds"),
        (lambda: Gaussian([0.0], [0.0]), "std"),
        (lambda: Gaussian([0.0], [-1.0]), "std"),
        (lambda: Gaussian([0.0], [1.0, 1.0]), "std"),
        (lambda: Gaussian([0.0, 1e300], 1.0), "mean"),
        (lambda: Gaussian(0.0, 1.0), "mean"),
        (lambda: Gaussian([3e38], [3e38]), "mean and std"),
        (lambda: Gaussian([0.0], [1e-50]), "std"),
    ],
)
def test_a_bad_argument_is_named(make, argument):
    with pytest.raises(InvalidArgument, match=argument):
        make()


@pytest.mark.parametrize(
    ("q", "p"),
    [
        (Bernoulli([0.5]), Gaussian([0.0], [1.0])),
        (Bernoulli([0.5]), Bernoulli([0.5, 0.5])),
        (Categorical([[0.5, 0.5]], [0, 1]), Categorical([[0.5, 0.5]], [0, 2])),
    ],
)
def test_p_must_be_of_the_family_and_shape_of_q(q, p):
    with pytest.raises(InvalidArgument, match=r"\bp\b"):
        q.kl(p)


def test_laws_cannot_be_changed_behind_the_digest():
    theta = np.array([0.25, 0.75])
    law = Bernoulli(theta)
    before = law.digest
    theta[0] = 0.9
    assert Bernoulli([0.25, 0.75]).digest == before
    with pytest.raises(ValueError, match="read-only"):
        law.probability[0] = 0.9


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20))
def test_digests_follow_the_fixed_point_form(theta):
    law = Bernoulli(theta)
    nudged = Bernoulli(np.asarray(theta) * (1 - 1e-9))
    assert (law.digest == nudged.digest) == np.array_equal(law.thresholds, nudged.thresholds)


def test_negative_zero_is_zero():
    assert Gaussian([0.0], [1.0]).digest == Gaussian([-0.0], [1.0]).digest
    assert Categorical([[0.5, 0.5]], [0.0, 1.0]).digest == Categorical([[0.5, 0.5]], [-0.0, 1.0]).digest


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda law: pickle.loads(pickle.dumps(law))], ids=["copy", "pickle"])
@pytest.mark.parametrize(
    "law", [Bernoulli([0.2, 0.7]), Categorical([[0.3, 0.7]], [0, 5]), Gaussian([1.0, 2.0], 3.0)], ids=lambda x: x.family
)
def test_copies_are_as_immutable(law, copied):
    law.digest  # noqa: B018
    twin = copied(law)
    assert twin.digest == law.digest
    for array in vars(twin).values():
        if isinstance(array, np.ndarray):
            assert not array.flags.writeable
