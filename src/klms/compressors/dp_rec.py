"""DP-REC (Triastcyn et al., 2021): a sample of `N(clip(v), sigma^2)` at its KL to `N(m, sigma^2)`.

`m` is the last round's mean update, which server and clients know. Blocks and their number of bits are fixed. The noise
is there for privacy, not for compression; `methods/dp_rec.py` says what it buys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from klms.codec import Gaussian, SharedKey
from klms.compressors.base import Side, Vector, checked
from klms.compressors.block_coder import BlockCoder


@dataclass(frozen=True)
class DPREC:
    """`clip` bounds the norm of the update; `sigma` is the noise on each coordinate."""

    clip: float
    sigma: float
    coder: BlockCoder

    def start(self) -> Side:
        return {**self.coder.start(), "mean": np.zeros(self.coder.d, dtype=np.float32)}

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.coder.d)
        norm = float(np.linalg.norm(vector.astype(np.float64)))
        clipped = vector * np.float32(min(1.0, self.clip / norm)) if norm > 0 else vector
        q = Gaussian(clipped, self.sigma)
        return self.coder.encode(q, self._p(side), side, key=key, rng=rng)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        return np.asarray(self.coder.decode(message, self._p(side), side, key=key), dtype=np.float32)

    def learn(self, side: Side, messages: Sequence[bytes], vectors: Sequence[Vector]) -> Side:
        mean = np.mean(vectors, axis=0, dtype=np.float64)
        return {**self.coder.learn(side, messages), "mean": np.asarray(mean, dtype=np.float32)}

    def _p(self, side: Side) -> Gaussian:
        return Gaussian(side["mean"], self.sigma)
