"""The paper's theory as functions: how many candidates, how large a gap, how much of the update survives.

KL divergences and overheads are in bits here as everywhere; the paper's `r` is `overhead * log 2`.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from klms.codec import Selection
from klms.codec.checks import integer
from klms.codec.selection import SELECTIONS, matching_beta

LN_2 = math.log(2.0)


def candidates_for(kl: float, overhead: float = 0.0) -> int:
    """`K = exp(D + r)`, rounded up: how many candidates Theorem 1 takes for a KL of `kl` bits.

    >>> candidates_for(8.0, overhead=1.0)
    512
    """
    if not (kl >= 0 and overhead >= 0 and kl + overhead <= 1000):
        raise ValueError(f"kl and overhead must be in [0, 1000] bits, got {kl} and {overhead}")
    return math.ceil(math.exp2(kl + overhead) - 1e-9)


def tail_probability(log_ratios: npt.ArrayLike, kl: float, overhead: float) -> float:
    """Monte Carlo estimate of `P(log q/p > D + r/2)` from samples of `log2 q(X)/p(X)`, `X ~ q`."""
    samples = np.asarray(log_ratios, dtype=np.float64)
    if samples.size == 0 or np.isnan(samples).any():
        raise ValueError("log_ratios must hold samples, none of them NaN")
    return float(np.mean(samples > kl + overhead / 2))


def epsilon(overhead: float, tails: Sequence[float]) -> float:
    """The `epsilon` of Theorem 1 for clients with these tail probabilities.

    Use it with one client, where it is Chatterjee and Diaconis' and holds; the gap of a mean over clients is at most
    the mean of their gaps, so that bound serves any number of them. The product over clients, as printed, is too good
    to be true: its proof counts the tuples of candidates of all clients as independent, though they share candidates.
    Two tests show both: for 10 clients with 512 candidates each the printed bound is passed 97 times in 100, where it
    promises one in a thousand.

    >>> round(epsilon(overhead=20.0, tails=[0.0] * 2), 4)
    0.0312
    """
    if len(tails) == 0 or not all(0 <= tail <= 1 for tail in tails):
        raise ValueError("tails must hold one probability a client")
    if not overhead >= 0:
        raise ValueError(f"overhead must not be negative, got {overhead}")
    r = overhead * LN_2
    return math.sqrt(math.exp(-len(tails) * r / 4) + 2 * math.sqrt(math.prod(tails)))


def gap_bound(norm: float, eps: float) -> tuple[float, float]:
    """Theorem 1: the gap of the mean exceeds the first number with at most the second as probability.

    `norm` is `||f||_q`, the root mean square of the average over clients of `f(X)`. Where `eps >= 1` the theorem says
    nothing: the bound is infinite.
    """
    if not (norm >= 0 and eps >= 0):
        raise ValueError(f"norm and eps must not be negative, got {norm} and {eps}")
    if eps >= 1:
        return math.inf, 1.0
    return 2 * norm * eps / (1 - eps), min(2 * eps, 1.0)


def survived_fraction(
    bits: int,
    rho: float,
    *,
    selection: Selection = "sample",
    trials: int = 4000,
    rng: np.random.Generator,
) -> float:
    """Which part of the update `q - p` arrives in expectation: `bits` a block, `rho` bits paid per bit of KL.

    For a Gaussian block with i.i.d. candidates. A block with mean shift `mu` has KL `|mu|^2 / 2` nats, and only the
    component of a candidate along `mu` matters to its score, so one dimension is simulated: scores `|mu| z_k` up to a
    constant, of which a true sample of `q` has `|mu|^2` on average.
    """
    bits, trials = integer("bits", bits, 1, 24), integer("trials", trials, 1, 10**9)
    if not (rho > 0 and math.isfinite(rho)):
        raise ValueError(f"rho must be positive and finite, got {rho}")
    if selection not in SELECTIONS:
        raise ValueError(f"selection must be one of {', '.join(SELECTIONS)}; got {selection!r}")
    shift = math.sqrt(2 * bits / rho * LN_2)
    survived = 0.0
    for _ in range(trials):
        scores = shift * rng.standard_normal(1 << bits)
        top = scores.max()
        if selection == "greedy":
            survived += float(top)
            continue
        weights = np.empty_like(scores)
        beta = matching_beta(scores - top, shift * shift - top, weights) if selection == "matched" else 1.0
        weights = np.exp(beta * (scores - top))
        survived += float(weights @ scores / weights.sum())
    return survived / trials / (shift * shift)
