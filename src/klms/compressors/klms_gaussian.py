"""SGLD-KLMS (paper, section 4.3): the sampler's noise is the sample.

`q = N(H, std^2)`, `p = N(0, std^2)`: what arrives is the gradient with the noise that Langevin dynamics needs anyway.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from klms.codec import Decoded, Gaussian, SharedKey
from klms.compressors.base import Compressor, Learner, Side, Vector, check_update
from klms.compressors.block_coder import BlockCoder


@dataclass(frozen=True)
class KLMSGaussian(Compressor):
    """A sample of `N(update, std^2)`."""

    std: float
    coder: BlockCoder

    def start(self) -> Side:
        return self.coder.start()

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        update = check_update(update, self.coder.d)
        return self.coder.encode(Gaussian(update, self.std), self.noise, side, key=key, rng=rng)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        return self.coder.decode(message, self.noise, side, key=key)

    def learner(self, side: Side) -> Learner:
        return self.coder.learner(side)

    @cached_property
    def noise(self) -> Gaussian:
        """The shared distribution `p`, which never changes."""
        return Gaussian(np.zeros(self.coder.d, dtype=np.float32), self.std)
