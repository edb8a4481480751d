"""SignSGD-KLMS (paper, section 4.3): `q = Bern(sigmoid(v / M))` for a plus, `p = Bern(1/2)`."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from klms.codec import Bernoulli, Decoded, SharedKey
from klms.compressors.base import Compressor, Learner, Side, Vector, check_update
from klms.compressors.block_coder import BlockCoder, BlockSettings
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme
from klms.compressors.sign import StochasticSettings, plus_probability


class KLMSSignSettings(StochasticSettings, BlockSettings):
    """Settings of SignSGD-KLMS."""


@dataclass(frozen=True)
class KLMSSign(Compressor):
    """Signs drawn with probability `sigmoid(v / M)`, at the cost of their KL to a fair coin."""

    layout: Layout
    scale: float
    coder: BlockCoder

    def start(self) -> Side:
        return self.coder.start()

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        update = check_update(update, self.layout.d)
        q = Bernoulli(plus_probability(update, self.layout, self.scale))
        return self.coder.encode(q, self.coin, side, key=key, rng=rng)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        decoded = self.coder.decode(message, self.coin, side, key=key)
        return replace(decoded, vector=decoded.vector.astype(np.float32) * 2 - 1)

    def learner(self, side: Side) -> Learner:
        return self.coder.learner(side)

    @cached_property
    def coin(self) -> Bernoulli:
        """The shared distribution `p`, which never changes."""
        return Bernoulli(np.full(self.layout.d, 0.5, dtype=np.float32))


SCHEME = Scheme(
    name="signsgd-klms",
    title="Stochastic signs at their KL to a fair coin",
    reference="Isik et al., AISTATS 2024",
    family="signsgd",
    settings=KLMSSignSettings,
    make=lambda layout, s, threads: KLMSSign(layout, s.scale, s.coder(layout.d, threads)),
    unbiased=lambda settings: False,
    directions_only=True,
    operating_points=(),
    needs_side_information=True,
)
