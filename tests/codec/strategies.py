"""Hypothesis strategies for what the codec takes."""

import numpy as np
from hypothesis import strategies as st

from klms import Bernoulli, Blocks, Categorical, Gaussian, SharedKey

keys = st.builds(
    SharedKey,
    seed=st.integers(0, 2**64 - 1),
    round=st.integers(0, 2**32 - 1),
    client=st.integers(0, 2**64 - 1),
)
generators = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@st.composite
def partitions(draw, d: int) -> Blocks:
    """Blocks over `[0, d)`: all sorts of them."""
    cuts = draw(st.sets(st.integers(1, d - 1), max_size=min(d - 1, 12))) if d > 1 else set()
    return Blocks([0, *sorted(cuts), d])


@st.composite
def laws(draw, max_d: int = 40):
    """`(q, p)` of one family, saturated probabilities included."""
    d = draw(st.integers(1, max_d))
    rng = draw(generators)
    family = draw(st.sampled_from(["bernoulli", "categorical", "gaussian"]))
    if family == "bernoulli":
        q, p = rng.random((2, d))
        q[rng.random(d) < 0.1] = rng.integers(0, 2)
        p[rng.random(d) < 0.1] = rng.integers(0, 2)
        return Bernoulli(q), Bernoulli(p)
    if family == "categorical":
        symbols = draw(st.integers(2, 7))
        q, p = (rng.dirichlet(np.full(symbols, draw(st.sampled_from([0.1, 1.0, 10.0]))), d) for _ in range(2))
        values = rng.normal(size=symbols)
        return Categorical(q, values), Categorical(p, values)
    spread = draw(st.sampled_from([0.0, 0.3]))
    q, p = (Gaussian(rng.normal(0, 0.5, d), np.exp(spread * rng.normal(size=d))) for _ in range(2))
    return q, p
