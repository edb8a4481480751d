"""The low-rank part of the dense scheme: what it saves, that it biases nothing, and bytes from strangers."""

import numpy as np
import pytest

from klms import CorruptMessage, KLMSError
from klms.compressors.layout import Layout
from klms.compressors.trellis import Trellis
from klms.compressors.trellis.low_rank import LowRank
from klms.compressors.trellis.low_rank_coder import Matrix, matrices
from klms.compressors.trellis.outliers import Outliers
from klms.compressors.trellis.pieces import Pieces
from tests.support.messages import resealed
from tests.support.mutation import mutate
from tests.support.vectors import KEY, relative_error, through

LAYOUT = Layout(("conv", "dense", "bias"), ((16, 8, 3, 3), (120, 200), (120,)))


def matrices_of(layout: Layout) -> list[Matrix]:
    return matrices(Pieces.for_rate(layout, 1.0))


def update(rank: int = 3, noise: float = 0.5, seed: int = 0) -> np.ndarray:
    """Return matrices of this rank with noise, as gradients have."""
    rng = np.random.default_rng(seed)
    parts = []
    for matrix in matrices_of(LAYOUT):
        part = rng.standard_normal((matrix.rows, rank)) @ rng.standard_normal((rank, matrix.columns))
        parts.append(part / max(part.std(), 1e-9) + noise * rng.standard_normal(part.shape))
    return np.concatenate([*map(np.ravel, parts), rng.standard_normal(120)]).astype(np.float32)


def without_matrices(layout: Layout) -> Layout:
    return Layout(layout.names, tuple((size,) for size in layout.sizes))


@pytest.mark.parametrize(("rate", "contracting", "bound"), [(0.3, False, 0.8), (1, False, 0.5), (0.1, True, 0.85)])
def test_matrices_of_low_rank_cost_less(rate, contracting, bound):
    x = update()
    message, y = through(Trellis(LAYOUT, rate, echo=float(contracting)), x)
    plain, z = through(Trellis(without_matrices(LAYOUT), rate, echo=float(contracting)), x)
    assert relative_error(x, y) < bound * relative_error(x, z)
    assert len(message) < 1.03 * rate * x.size / 8
    assert len(plain) < 1.03 * rate * x.size / 8


@pytest.mark.parametrize(("rate", "bound"), [(0.3, 2e-5), (1, 3e-6), (4, 1e-7)])
def test_what_is_almost_of_low_rank_is_sent_almost_exactly(rate, bound):
    """The price of a bit falls by orders of magnitude once the products are taken out."""
    layout = Layout(("dense",), ((256, 512),))
    rng = np.random.default_rng(0)
    product = rng.standard_normal((256, 1)) @ rng.standard_normal((1, 512))
    x = (product + 1e-3 * rng.standard_normal(product.shape)).astype(np.float32).ravel()
    assert relative_error(x, through(Trellis(layout, rate), x)[1]) < bound


@pytest.mark.parametrize("rate", [0.1, 1])
def test_noise_has_no_low_rank_part(rate):
    x = update(rank=0, noise=1.0)
    assert through(Trellis(LAYOUT, rate), x)[0] == through(Trellis(without_matrices(LAYOUT), rate), x)[0]


def test_the_estimate_is_unbiased():
    """The mean of 400 decoded updates has the error that 400 independent ones should have, within six deviations."""
    x, scheme, draws = update(), Trellis(LAYOUT, 0.5), 400
    decoded = [through(scheme, x, n)[1].astype(float) for n in range(draws)]
    single = np.mean([np.sum((y - x) ** 2) for y in decoded])
    ratio = np.sum((np.mean(decoded, axis=0) - x) ** 2) / (single / draws)
    assert abs(ratio - 1) < 6 * np.sqrt(2 / x.size) + 0.05


def test_any_number_of_threads_gives_the_same_bytes():
    x = update()
    assert through(Trellis(LAYOUT, 1.0, threads=1), x)[0] == through(Trellis(LAYOUT, 1.0, threads=3), x)[0]


def test_few_products_are_allowed_of_narrow_matrices():
    """Otherwise a hostile message could make the decoder do many times the work of an honest one."""
    layout = Layout(("narrow", "thin", "vector"), ((3, 400), (9, 9), (50,)))
    (thin,) = matrices_of(layout)
    assert (thin.rows, thin.columns, thin.most_products) == (9, 9, 2)


def test_damaged_contents_raise_typed_errors():
    pieces, rng = Pieces.for_rate(LAYOUT, 1.0), np.random.default_rng(0)
    stage, x = LowRank(pieces, Outliers(pieces.regions)), pieces.gather(update())
    rest = x.copy()
    content = stage.take(rest, 1.0 * LAYOUT.d, KEY, rng)
    back = rest.copy()
    stage.decode(content, KEY, back)
    np.testing.assert_allclose(back, x, atol=1e-5)
    for end in range(len(stage.matrices)):
        with pytest.raises(CorruptMessage, match="cut off"):
            stage.decode(content[:end], KEY, rest.copy())
    with pytest.raises(CorruptMessage, match="200 products"):
        stage.decode(bytes([200]) + content[1:], KEY, rest.copy())


def test_damaged_messages_raise_typed_errors():
    x, scheme, rng = update(), Trellis(LAYOUT, 0.5), np.random.default_rng(1)
    (message, _), (other, _) = through(scheme, x), through(scheme, update(seed=1))
    for _ in range(300):
        damaged = resealed(mutate(message, other, rng), KEY)  # past the checksum
        try:
            decoded = scheme.decode(damaged, {}, key=KEY).vector
        except KLMSError:
            continue
        assert decoded.shape == x.shape
        assert np.isfinite(decoded).all()
