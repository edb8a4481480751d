"""Candidates: each a sample of `p`, any two independent, and as good as i.i.d. ones.

Every chi-square test here compares with the quantile of a false-alarm rate of 1e-6; with fixed keys they either hold
for good or do not.
"""

import numpy as np
import pytest
from scipy.stats import chi2, chi2_contingency

from klms import Bernoulli, Categorical, Codec, Gaussian, SharedKey, adaptive_blocks, fixed_blocks
from klms.benchmarks import oracle
from klms.codec.candidates import chosen_words, shared_words
from klms.numerics.philox import buffer_size

FALSE_ALARM = 1e-6
BITS = 8
SIZE = 64
COUNT = 4000  # blocks, each with candidates of its own


def words_of_candidate(index: int) -> np.ndarray:
    """The words of candidate `index` in each of COUNT blocks of SIZE, one row per block."""
    shared = shared_words(SharedKey(5, 6, 7), fixed_blocks(COUNT * SIZE, SIZE), BITS)
    buffer = np.empty(buffer_size(SIZE), dtype=np.uint64)
    return np.array([chosen_words(buffer, m, m * SIZE, SIZE, index, shared).copy() for m in range(COUNT)])


def chi_square(observed: np.ndarray, expected: np.ndarray) -> None:
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < chi2.isf(FALSE_ALARM, observed.size - 1)


@pytest.mark.parametrize("index", [0, 1, 2, 37, 128, 255])
def test_each_candidate_is_uniform(index):
    words = words_of_candidate(index).ravel()
    cells = np.bincount(words >> 8, minlength=256)
    chi_square(cells, np.full(256, words.size / 256))
    low = np.bincount(words & 255, minlength=256)
    chi_square(low, np.full(256, words.size / 256))


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 2), (0, 255), (3, 5), (37, 38), (170, 85)])
def test_any_two_candidates_are_independent(one, other):
    # Over many keys, as the generators are shared by the blocks of a message.
    pairs = np.zeros((16, 16), dtype=np.int64)
    for client in range(400):
        shared = shared_words(SharedKey(11, 0, client), fixed_blocks(SIZE, SIZE), BITS)
        buffer = np.empty(buffer_size(SIZE), dtype=np.uint64)
        a = chosen_words(buffer, 0, 0, SIZE, one, shared) >> 12
        b = chosen_words(np.empty_like(buffer), 0, 0, SIZE, other, shared) >> 12
        np.add.at(pairs, (a, b), 1)
    chi_square(pairs.ravel(), np.full(256, 400 * SIZE / 256))
    assert chi2_contingency(pairs).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "p",
    [
        Bernoulli(np.full(SIZE * COUNT, 0.05)),
        Bernoulli(np.full(SIZE * COUNT, 0.5)),
        Categorical(np.tile([0.02, 0.9, 0.08], (SIZE * COUNT, 1)), [-1.0, 0.0, 1.0]),
    ],
    ids=["skewed", "even", "ternary"],
)
@pytest.mark.parametrize("index", [0, 1, 200])
def test_each_candidate_is_a_sample_of_p(p, index):
    indices = np.full(COUNT, index, dtype=np.uint16)
    out = Codec(bits=BITS).candidates(indices, p, fixed_blocks(p.d, SIZE), key=SharedKey(5, 6, 7))
    observed = np.array([(out == value).sum() for value in p.values])
    edges = np.concatenate([[0], p.thresholds[:, 0].astype(np.int64), [65536]])
    chi_square(observed, np.diff(edges) / 65536 * p.d)


def survived(delta: np.ndarray, sample: np.ndarray, p: np.ndarray) -> float:
    return float((sample - p) @ delta / (delta @ delta))


def moved(theta: np.ndarray, kl: float, rng: np.random.Generator) -> np.ndarray:
    """Probabilities whose logits differ from theta's by a normal amount, such that the mean KL is `kl` bits."""
    noise = rng.normal(size=theta.size)
    low, high = 0.0, 10.0
    for _ in range(30):
        step = (low + high) / 2
        phi = 1 / (1 + np.exp(-(np.log(theta / (1 - theta)) + step * noise)))
        low, high = (step, high) if Bernoulli(phi).kl(Bernoulli(theta)).mean() < kl else (low, step)
    return phi


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("center", [0.5, 0.05])
def test_as_much_survives_as_with_iid_candidates(bits, center):
    """Within 0.02, as the issue asks; both estimates have a standard deviation of about 0.003."""
    rng = np.random.default_rng(bits)
    size, clients = 60, 60
    theta = np.full(size * 2000, center)
    phi = moved(theta, bits / size, rng)
    q, p = Bernoulli(phi), Bernoulli(theta)
    blocks = fixed_blocks(p.d, size)
    total = np.zeros(p.d)
    for client in range(clients):
        key = SharedKey(1, 2, client)
        message = Codec(bits=bits).encode(q, p, blocks, key=key, rng=rng)
        total += Codec().decode(message, p, key=key, blocks=blocks)
    linear = survived(phi - theta, total / clients, theta)

    expected = np.empty(p.d)
    for start in range(0, p.d, size):
        block = slice(start, start + size)
        candidates, scores = oracle.draw_and_score(q, p, block, 1 << bits, rng)
        weights = np.exp(scores - scores.max())
        expected[block] = weights @ candidates / weights.sum()
    iid = survived(phi - theta, expected, theta)
    assert linear == pytest.approx(iid, abs=0.02)
    assert 0.4 < linear < 0.9


@pytest.mark.parametrize(("size", "bits"), [(1, 2), (2, 2), (4, 4), (16, 4)])
def test_no_message_has_bad_luck_everywhere(size, bits):
    """Blocks have windows of their own: what survives hardly differs from message to message, small blocks or not."""
    p, q = Bernoulli(np.full(2000 * size, 0.5)), Bernoulli(np.full(2000 * size, 0.9 if size < 16 else 0.75))
    blocks = fixed_blocks(p.d, size)
    carried = []
    for client in range(40):
        key = SharedKey(3, 0, client)
        message = Codec(bits=bits).encode(q, p, blocks, key=key, rng=np.random.default_rng(client))
        sample = Codec().decode(message, p, key=key, blocks=blocks)
        carried.append((sample.mean() - 0.5) / (q.probability[0] - 0.5))
    assert np.std(carried) < 0.05
    assert min(carried) > 0.5


@pytest.mark.parametrize("bits", [8, 12])
@pytest.mark.parametrize("size", [8, 40])
def test_a_strong_pull_into_the_tail_is_followed(bits, size):
    """One coordinate in `size` wants a mean of 4 under p = N(0, 1): the best candidate is found, cells or no cells."""
    mean = np.zeros(300 * size)
    mean[::size] = 4.0
    p, q = Gaussian(np.zeros(mean.size), 1.0), Gaussian(mean, 1.0)
    blocks = fixed_blocks(mean.size, size)
    key = SharedKey(1, bits, size)
    message = Codec(bits=bits, selection="greedy").encode(q, p, blocks, key=key)
    sample = Codec().decode(message, p, key=key, blocks=blocks)
    # About the largest of K standard normals, 2.8 of 256 and 3.6 of 4096 if they were independent.
    assert sample[::size].mean() == pytest.approx(2.75 if bits == 8 else 3.55, abs=0.1)


def test_gaussian_candidates_carry_what_the_theory_says():
    """Direct scoring (8 bits) and Walsh scoring (10 bits) against the one-dimensional simulation of theory.py."""
    from klms.theory import survived_fraction

    rng = np.random.default_rng(0)
    for bits in (8, 10):
        q = Gaussian(rng.normal(0, np.sqrt(2 * bits * np.log(2) / 200), 200 * 6000), 1.0)
        p = Gaussian(np.zeros(q.d), 1.0)
        blocks = adaptive_blocks(q.kl(p), target=float(bits))
        key = SharedKey(9, bits, 1)
        sample = Codec().decode(Codec(bits=bits).encode(q, p, blocks, key=key, rng=rng), p, key=key, blocks=blocks)
        rho = bits / (q.kl(p).sum() / len(blocks))
        theory = survived_fraction(bits, rho, trials=1500, rng=rng)
        assert survived(q.mean.astype(float), sample, p.mean) == pytest.approx(theory, abs=0.02)
