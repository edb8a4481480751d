"""The paper's theory as functions: candidates needed, the bound of Theorem 1, the fraction of an update that arrives.

KL divergences and overheads are in bits, as everywhere; the paper's `r` is `overhead * log 2`.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from klms.codec import SELECTIONS, Selection, matching_beta
from klms.errors import InvalidArgument
from klms.numerics.checks import check_name, integer
from klms.numerics.elementary import LN_2


def candidates_for(kl: float, overhead: float = 0.0) -> int:
    """Return the number of candidates of Theorem 1 for a KL of `kl` bits: `K = exp(D + r)`, rounded up.

    >>> candidates_for(8.0, overhead=1.0)
    512
    """
    if not (kl >= 0 and overhead >= 0 and kl + overhead <= 1000):
        raise InvalidArgument(f"kl and overhead must be in [0, 1000] bits, got {kl} and {overhead}")
    return math.ceil(math.exp2(kl + overhead) - 1e-9)


def tail_probability(log_ratios: npt.ArrayLike, kl: float, overhead: float) -> float:
    """Estimate `P(log q/p > D + r/2)` from samples of `log2 q(X)/p(X)` with `X ~ q`."""
    samples = np.asarray(log_ratios, dtype=np.float64)
    if samples.size == 0 or np.isnan(samples).any():
        raise InvalidArgument("log_ratios must hold at least one sample and no NaN")
    return float(np.mean(samples > kl + overhead / 2))


def epsilon(overhead: float, tails: Sequence[float]) -> float:
    """Return the `epsilon` of Theorem 1 for clients with these tail probabilities.

    Use this function with one client. It then returns the bound of Chatterjee and Diaconis, which also holds for any
    number of clients, since the gap of a mean over clients is at most the mean of their gaps. The product over clients,
    as printed in the paper, does not hold: its proof treats tuples of candidates as independent although they share
    candidates. In the tests, with 10 clients and 512 candidates, the gap exceeds the printed bound in 97 of 100 draws,
    where the theorem promises one in a thousand.

    >>> round(epsilon(overhead=20.0, tails=[0.0] * 2), 4)
    0.0312
    """
    if len(tails) == 0 or not all(0 <= tail <= 1 for tail in tails):
        raise InvalidArgument("tails must hold one probability per client")
    if not overhead >= 0:
        raise InvalidArgument(f"overhead must not be negative, got {overhead}")
    r = overhead * LN_2
    return math.sqrt(math.exp(-len(tails) * r / 4) + 2 * math.sqrt(math.prod(tails)))


def gap_bound(norm: float, eps: float) -> tuple[float, float]:
    """Return the bound of Theorem 1 on the gap of the mean, and a bound on the probability that the gap exceeds it.

    `norm` is `||f||_q`, the root mean square of the average over clients of `f(X)`. For `eps >= 1` the theorem says
    nothing, and the bound is infinite.
    """
    if not (norm >= 0 and eps >= 0):
        raise InvalidArgument(f"norm and eps must not be negative, got {norm} and {eps}")
    if eps >= 1:
        return math.inf, 1.0
    return 2 * norm * eps / (1 - eps), min(2 * eps, 1.0)


def survived_fraction(
    bits: int, rho: float, *, selection: Selection = "sample", trials: int = 4000, rng: np.random.Generator
) -> float:
    """Estimate the fraction of the update `q - p` that arrives in expectation.

    A Gaussian block with i.i.d. candidates is coded with `bits` bits, which are `rho` times its KL. If its mean is
    shifted by `mu`, its KL is `|mu|^2 / 2` nats, and only the component of a candidate along `mu` matters: up to a
    constant, the scores are `|mu| z_k`, and a true sample of `q` scores `|mu|^2` on average.
    """
    bits = integer("bits", bits, 1, 24)
    trials = integer("trials", trials, 1, 10**9)
    if not (rho > 0 and math.isfinite(rho)):
        raise InvalidArgument(f"rho must be positive and finite, got {rho}")
    check_name("selection", selection, SELECTIONS)
    shift = math.sqrt(2 * bits / rho * LN_2)
    survived = 0.0
    for _ in range(trials):
        scores = shift * rng.standard_normal(1 << bits)
        top = scores.max()
        if selection == "greedy":
            survived += float(top)
            continue
        beta = matching_beta(scores - top, shift * shift - top) if selection == "matched" else 1.0
        weights = np.exp(beta * (scores - top))
        survived += float(weights @ scores / weights.sum())
    return survived / trials / (shift * shift)
