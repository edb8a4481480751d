"""FedPM-KLMS (paper, section 4.3): a sample of `Bern(phi)` at the cost of its KL to `Bern(theta)`.

`theta`, the mask probabilities before the round, is part of the state that all clients hold.
"""

from dataclasses import dataclass, field

import numpy as np

from klms.codec import Bernoulli, Decoded, SharedKey
from klms.compressors.base import Compressor, Learner, Side, Vector
from klms.compressors.block_coder import BlockCoder, BlockSettings
from klms.compressors.once import Once
from klms.compressors.scheme import Scheme


@dataclass(frozen=True)
class KLMSMask(Compressor):
    """Masks through the codec, with the shared probabilities `side["theta"]` as `p`."""

    coder: BlockCoder
    _p: Once[Bernoulli] = field(default_factory=Once, compare=False, repr=False)

    def start(self) -> Side:
        return self.coder.start()

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        return self.coder.encode(Bernoulli(update), self._p(side["theta"], Bernoulli), side, key=key, rng=rng)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        return self.coder.decode(message, self._p(side["theta"], Bernoulli), side, key=key)

    def learner(self, side: Side) -> Learner:
        return self.coder.learner(side)


SCHEME = Scheme(
    name="mask-klms",
    title="Probabilistic masks at their KL",
    reference="Isik et al., AISTATS 2024",
    family="mask",
    settings=BlockSettings,
    make=lambda layout, settings, threads: KLMSMask(settings.coder(layout.d, threads)),
    codes="masks",
    unbiased=lambda settings: False,
    needs_side_information=True,
)
