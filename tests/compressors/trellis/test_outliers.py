"""Outliers: which are sent apart, and that they arrive."""

import numpy as np

from klms import SharedKey
from klms.compressors.trellis.outliers import Outliers
from klms.compressors.trellis.pieces import Regions
from klms.numerics.quantiles import normal_quantiles
from tests.support.vectors import KEY


def test_outliers_arrive_at_their_places_without_bias():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4096).astype(np.float32) * 0.01
    places = rng.choice(4096, 40, replace=False)
    x[places] += rng.choice([-1, 1], 40) * rng.uniform(1, 5, 40)
    stage = Outliers(Regions(np.array([0, 1024, 4096]), np.array([1024, 3072])))
    total = np.zeros(4096)
    for n in range(300):
        rest, key, own = x.copy(), SharedKey(1, 1, n), np.random.default_rng(n)
        content = stage.take(rest, 4096.0, key, own)
        assert np.abs(rest).max() < 1
        stage.decode(content, key, rest)
        total += rest
    np.testing.assert_allclose(total[places] / 300, x[places], rtol=0.03)


def test_normal_vectors_have_no_outliers():
    rest = normal_quantiles()[np.random.default_rng(0).permutation(65536)]
    stage = Outliers(Regions(np.array([0, 65536]), np.array([65536])))
    for bits in (0.1, 1.0, 3.0):
        assert stage.take(rest.copy(), 65536 * bits, KEY, np.random.default_rng(0)) == b""
