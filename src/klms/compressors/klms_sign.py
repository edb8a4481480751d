"""SignSGD-KLMS (paper, section 4.3): `q = Bern(sigmoid(v / M))` of a plus, `p = Bern(1/2)`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from klms.codec import Bernoulli, SharedKey
from klms.compressors.base import Side, Vector, checked
from klms.compressors.block_coder import BlockCoder
from klms.compressors.layout import Layout
from klms.compressors.sign import plus_probability


@dataclass(frozen=True)
class KLMSSign:
    """Signs drawn with probability `sigmoid(v / M)`, at the cost of their KL to a coin."""

    layout: Layout
    scale: float
    coder: BlockCoder

    def start(self) -> Side:
        return self.coder.start()

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.layout.d)
        q = Bernoulli(plus_probability(vector, self.layout, self.scale))
        return self.coder.encode(q, self.coin, side, key=key, rng=rng)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        plus = self.coder.decode(message, self.coin, side, key=key)
        return plus.astype(np.float32) * 2 - 1

    def learn(self, side: Side, messages: Sequence[bytes], vectors: Sequence[Vector]) -> Side:
        return self.coder.learn(side, messages)

    @cached_property
    def coin(self) -> Bernoulli:
        """`p`, which never changes."""
        return Bernoulli(np.full(self.layout.d, 0.5, dtype=np.float32))
