"""Samples of a Gaussian around the update, for methods that need noise.

SGLD-KLMS (paper, section 4.3) has `q = N(H, std^2)` and `p = N(0, std^2)`: the server receives the gradient with the
noise that Langevin dynamics needs anyway.

DP-REC (Triastcyn et al., 2021) has `q = N(clip(v), sigma^2)` and `p = N(m, sigma^2)`, where `m` is the last round's
mean update. Server and clients know `m`. The size of blocks and the bits per block are fixed. The noise serves privacy,
not compression; `methods/dp_rec.py` accounts for it.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from klms.codec import Decoded, Gaussian
from klms.compressors.base import Side, SideLearner, Vector
from klms.compressors.block_coder import BlockCoder, BlockCompressor, BlockLearner, Once, Scalars


@dataclass(frozen=True)
class KLMSGaussian(BlockCompressor):
    """A sample of `N(update, std^2)`."""

    std: float
    coder: BlockCoder

    def q(self, update: Vector) -> tuple[Gaussian, Scalars]:
        return Gaussian(update, self.std), ()

    def p(self, side: Side) -> Gaussian:
        return self._noise

    @cached_property
    def _noise(self) -> Gaussian:
        return Gaussian(np.zeros(self.d, dtype=np.float32), self.std)


@dataclass(frozen=True)
class DPREC(BlockCompressor):
    """`clip` bounds the norm of the update; `sigma` is the standard deviation of the noise on each coordinate."""

    clip: float
    sigma: float
    coder: BlockCoder
    _p: Once[Gaussian] = field(default_factory=Once, compare=False, repr=False)

    def start(self) -> Side:
        return {**self.coder.start(), "mean": np.zeros(self.coder.d, dtype=np.float32)}

    def q(self, update: Vector) -> tuple[Gaussian, Scalars]:
        norm = float(np.linalg.norm(update.astype(np.float64)))
        clipped = update * np.float32(min(1.0, self.clip / norm)) if norm > 0 else update
        return Gaussian(clipped, self.sigma), ()

    def p(self, side: Side) -> Gaussian:
        return self._p(side["mean"], lambda mean: Gaussian(mean, self.sigma))

    def learner(self, side: Side) -> SideLearner:
        return _MeanLearner(self.coder, side)


class _MeanLearner(BlockLearner):
    def __init__(self, coder: BlockCoder, side: Side) -> None:
        super().__init__(coder, side)
        self._total = np.zeros(coder.d)
        self._count = 0

    def add(self, decoded: Decoded) -> None:
        super().add(decoded)
        self._total += decoded.vector
        self._count += 1

    def finish(self) -> Side:
        return {**super().finish(), "mean": (self._total / max(1, self._count)).astype(np.float32)}
