import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from klms.numerics.elementary import subtract_largest, take_exponentials, take_logarithms, total
from klms.numerics.quantiles import normal_quantiles


def test_logarithms():
    x = np.concatenate([np.geomspace(1e-12, 1e12, 4001), 1 + np.linspace(-1e-6, 1e-6, 101), [1.0, 2.0, 0.5, 2**0.5]])
    logs = x.copy()
    take_logarithms(logs, np.empty_like(x))
    np.testing.assert_allclose(logs, np.log(x), rtol=1e-12, atol=1e-13)


def test_exponentials():
    x = -np.linspace(0, 43, 4001)
    out = np.empty_like(x)
    take_exponentials(x, 1.0, out)
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-7)
    take_exponentials(x, 1000.0, out)
    assert out[0] == 1.0
    assert out[-1] == 0.0


@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_reductions(bits, seed):
    x = np.random.default_rng(seed).normal(size=1 << bits)
    np.testing.assert_allclose(total(x), x.sum(), atol=1e-12)
    top = x.max()
    assert subtract_largest(x) == top
    assert x.max() == 0.0


def test_normal_quantiles():
    table = normal_quantiles().astype(np.float64)
    assert table.size == 65536
    assert (np.diff(table) > 0).all()
    np.testing.assert_array_equal(table, -table[::-1])
    assert abs(table.var() - 1) < 1e-8
    assert abs(np.mean(table**4) - 3) < 5e-3
