"""DP-REC (Triastcyn et al., 2021): a sample of `N(clip(v), sigma^2)` at its KL to `N(m, sigma^2)`.

`m` is the mean update of the last round, which server and clients know. Blocks and their number of bits are fixed. The
noise is there for privacy, not for compression; `methods/dp_rec.py` says what it buys.
"""

from dataclasses import dataclass, field

import numpy as np

from klms.codec import Decoded, Gaussian, SharedKey
from klms.compressors.base import Compressor, Learner, Side, Vector, check_update
from klms.compressors.block_coder import BlockCoder
from klms.compressors.once import Once, Source


@dataclass(frozen=True)
class DPREC(Compressor):
    """`clip` bounds the norm of the update; `sigma` is the standard deviation of the noise on each coordinate."""

    clip: float
    sigma: float
    coder: BlockCoder
    _p: Once[Gaussian] = field(default_factory=Once, compare=False, repr=False)

    def start(self) -> Side:
        return {**self.coder.start(), "mean": np.zeros(self.coder.d, dtype=np.float32)}

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        update = check_update(update, self.coder.d)
        norm = float(np.linalg.norm(update.astype(np.float64)))
        clipped = update * np.float32(min(1.0, self.clip / norm)) if norm > 0 else update
        q = Gaussian(clipped, self.sigma)
        return self.coder.encode(q, self._p(side["mean"], self._around), side, key=key, rng=rng)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        return self.coder.decode(message, self._p(side["mean"], self._around), side, key=key)

    def learner(self, side: Side) -> Learner:
        return _MeanLearner(self.coder, side)

    def _around(self, mean: Source) -> Gaussian:
        return Gaussian(mean, self.sigma)


class _MeanLearner:
    def __init__(self, coder: BlockCoder, side: Side) -> None:
        self._blocks = coder.learner(side)
        self._total = np.zeros(coder.d)
        self._count = 0

    def add(self, decoded: Decoded) -> None:
        self._blocks.add(decoded)
        self._total += decoded.vector
        self._count += 1

    def finish(self) -> Side:
        return {**self._blocks.finish(), "mean": (self._total / max(1, self._count)).astype(np.float32)}
