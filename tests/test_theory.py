import math
import re
from pathlib import Path

import numpy as np
import pytest

from klms import Codec, Gaussian, SharedKey, fixed_blocks
from klms.errors import InvalidArgument
from klms.theory import candidates_for, epsilon, gap_bound, survived_fraction, tail_probability

SHIFT = 0.8
KL = SHIFT**2 / 2 / math.log(2)


def log_ratios(rng: np.random.Generator) -> np.ndarray:
    """log2 q/p at samples of q, for q = N(0.8, 1) and p = N(0, 1)."""
    return (SHIFT * rng.normal(SHIFT, 1, 400_000) - SHIFT**2 / 2) / math.log(2)


def gaps(bits: int, clients: int, runs: int = 1000) -> np.ndarray:
    """|mean over clients - 0.8| through the real codec, run by run; a run is a coordinate with a block of its own."""
    rng = np.random.default_rng(bits)
    q, p = Gaussian(np.full(runs, SHIFT), 1.0), Gaussian(np.zeros(runs), 1.0)
    blocks = fixed_blocks(runs, 1)
    total = np.zeros(runs)
    for client in range(clients):
        key = SharedKey(1, bits, client)
        total += Codec().decode(Codec(bits=bits).encode(q, p, blocks, key=key, rng=rng), p, key=key, blocks=blocks)
    return np.abs(total / clients - SHIFT)


def test_how_many_candidates():
    assert candidates_for(8.0) == 256
    assert candidates_for(7.5, overhead=0.5) == 256
    assert candidates_for(0.0) == 1
    assert candidates_for(1.1) == 3
    assert candidates_for(40.0) == 2**40
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidArgument, match="kl"):
            candidates_for(wrong)


def test_the_gap_stays_below_the_bound_and_falls_with_overhead_and_clients():
    ratios = log_ratios(np.random.default_rng(0))
    means = {}
    for bits in (2, 6, 9):
        overhead = bits - KL
        eps = epsilon(overhead, [tail_probability(ratios, KL, overhead)])
        for clients in (1, 10, 100):
            bound, probability = gap_bound(math.sqrt(SHIFT**2 + 1 / clients), eps)
            gap = gaps(bits, clients)
            assert np.mean(gap >= bound) <= probability
            means[bits, clients] = gap.mean()
    for bits in (2, 6, 9):
        assert means[bits, 1] > means[bits, 10] > means[bits, 100]
    for clients in (10, 100):
        assert means[2, clients] > means[6, clients]
        assert means[2, clients] > means[9, clients]
    assert means[9, 100] < 0.1
    finite = gap_bound(1.0, epsilon(20 - KL, [tail_probability(ratios, KL, 20 - KL)]))
    assert finite[0] < 1
    assert finite[1] < 0.5


def test_a_tight_single_client_bound_holds():
    """At 16 bits the theorem promises something: the gap of the expectation, estimated from 1024 draws of an index."""
    ratios = log_ratios(np.random.default_rng(0))
    overhead = 16 - KL
    bound, probability = gap_bound(math.sqrt(SHIFT**2 + 1), epsilon(overhead, [tail_probability(ratios, KL, overhead)]))
    assert bound < 1
    rng = np.random.default_rng(1)
    exceeded = []
    for _ in range(200):
        z = rng.standard_normal(1 << 16)
        weights = np.exp(SHIFT * z)
        exceeded.append(abs(weights @ z / weights.sum() - SHIFT) >= bound)
    assert np.mean(exceeded) <= probability


def test_the_printed_product_over_clients_does_not_hold():
    ratios = log_ratios(np.random.default_rng(0))
    overhead = 9 - KL
    tail = tail_probability(ratios, KL, overhead)
    bound, probability = gap_bound(math.sqrt(SHIFT**2 + 1 / 10), epsilon(overhead, [tail] * 10))
    assert probability < 0.01
    rng = np.random.default_rng(2)
    z = rng.standard_normal((400, 10, 512))
    weights = np.exp(SHIFT * z)
    expectation = ((weights * z).sum(2) / weights.sum(2)).mean(1)
    assert np.mean(np.abs(expectation - SHIFT) >= bound) > 0.9


def test_epsilon_above_one_says_nothing():
    assert gap_bound(1.0, 1.5) == (math.inf, 1.0)
    with pytest.raises(InvalidArgument, match="tails"):
        epsilon(1.0, [])
    with pytest.raises(InvalidArgument, match="tails"):
        epsilon(1.0, [1.5])


def table_of_the_docs() -> list[tuple[str, float, list[float]]]:
    text = (Path(__file__).parents[1] / "docs" / "codec.md").read_text()
    rows = re.findall(r"^\| (sample|matched) \| ([\d.]+) \| ([\d. |]+) \|$", text, re.MULTILINE)
    return [(selection, float(rho), [float(cell) for cell in cells.split("|")]) for selection, rho, cells in rows]


def test_the_docs_show_all_rows():
    assert len(table_of_the_docs()) == 6


@pytest.mark.parametrize(("selection", "rho", "expected"), table_of_the_docs())
def test_what_survives_is_what_the_docs_say(selection, rho, expected):
    rng = np.random.default_rng(3)
    trials = {2: 8000, 4: 6000, 8: 2000, 12: 300}
    got = [survived_fraction(bits, rho, selection=selection, trials=trials[bits], rng=rng) for bits in trials]
    assert got == pytest.approx(expected, abs=0.015)


def test_matched_and_greedy_carry_more():
    values = {
        selection: survived_fraction(6, 1.0, selection=selection, trials=2000, rng=np.random.default_rng(4))
        for selection in ("sample", "matched", "greedy")
    }
    assert values["sample"] < values["matched"] <= values["greedy"]
    with pytest.raises(InvalidArgument, match="bits"):
        survived_fraction(0, 1.0, rng=np.random.default_rng(0))
