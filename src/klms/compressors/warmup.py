"""`klms warmup`: compile every kernel of the codec and of the schemes, so that no later call has to wait for it."""

from collections.abc import Container, Iterator, Mapping

import numpy as np

from klms.codec import SELECTIONS, Categorical, SharedKey
from klms.compressors.base import Compressor, Vector
from klms.compressors.block_coder import BlockSettings
from klms.compressors.klms_gaussian import KLMSGaussian
from klms.compressors.layout import Layout
from klms.compressors.schemes import SCHEMES

_LAYOUT = Layout(("weight", "bias"), ((64, 64), (64,)))


def compile_kernels() -> Iterator[str]:
    """Use every scheme once, on a small update, and yield its name."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(_LAYOUT.d).astype(np.float32)
    normal[::500] *= 50  # outliers have a coder of their own
    low_rank = normal.copy()
    low_rank[: 64 * 64] += 10 * np.outer(normal[:64], normal[64:128]).ravel()  # and so has a low-rank part
    probabilities = rng.uniform(0.1, 0.9, _LAYOUT.d).astype(np.float32)
    for name, scheme in SCHEMES.items():
        for values in _settings(scheme.settings.model_fields):
            compressor = scheme.create(_LAYOUT, values)
            for update in [probabilities] if scheme.codes == "masks" else [normal, low_rank]:
                _use(compressor, update)
        yield name
    for settings in _settings(BlockSettings.model_fields):
        _use(KLMSGaussian(1.0, BlockSettings.checked(settings).coder(_LAYOUT.d, None)), normal)
    yield "gaussian"
    for dtype in (np.float32, np.float64):
        Categorical(np.full((10, 2), 0.5, dtype=dtype), (0, 1))
    yield "categorical"


def _settings(names: Container[str]) -> Iterator[Mapping[str, object]]:
    """Yield settings that make use of different kernels."""
    if "selection" in names:
        for selection in SELECTIONS:
            yield {"selection": selection}
            yield {"selection": selection, "bits": 4, "memory": 4, "group": 8, "target": 4.0}
    elif "rate" in names:
        for rate in (0.05, 0.5, 4.0):
            yield {"rate": rate}
    else:
        yield {}


def _use(compressor: Compressor, update: Vector) -> None:
    side, key = {**compressor.start(), "theta": np.full(_LAYOUT.d, 0.5, dtype=np.float32)}, SharedKey(0, 1, 0)
    for _ in range(2):  # the first of two rounds may carry block maps
        message = compressor.encode(update, side, key=key, rng=np.random.default_rng(0))
        learner = compressor.learner(side)
        learner.add(compressor.decode(message, side, key=key))
        side = {**side, **learner.finish()}
