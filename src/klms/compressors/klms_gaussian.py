"""SGLD-KLMS (paper, section 4.3): the sampler's noise is the sample.

`q = N(H, std^2)`, `p = N(0, std^2)`: what arrives is the gradient with the noise that Langevin dynamics wants anyway.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from klms.codec import Gaussian, SharedKey
from klms.compressors.base import Side, Vector, checked
from klms.compressors.block_coder import BlockCoder


@dataclass(frozen=True)
class KLMSGaussian:
    """A sample of `N(vector, std^2)`."""

    std: float
    coder: BlockCoder

    def start(self) -> Side:
        return self.coder.start()

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.coder.d)
        return self.coder.encode(Gaussian(vector, self.std), self.noise, side, key=key, rng=rng)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        return np.asarray(self.coder.decode(message, self.noise, side, key=key), dtype=np.float32)

    def learn(self, side: Side, messages: Sequence[bytes], vectors: Sequence[Vector]) -> Side:
        return self.coder.learn(side, messages)

    @cached_property
    def noise(self) -> Gaussian:
        """`p`, which never changes."""
        return Gaussian(np.zeros(self.coder.d, dtype=np.float32), self.std)
