"""Binary masks: arithmetic-coded with the frequency of ones in each layer (FedPM, FedMask), or by KLMS.

FedPM-KLMS (paper, section 4.3) sends a sample of `Bern(phi)` at the cost of its KL to `Bern(theta)`. `theta`, the mask
probabilities before the round, is part of the state that all clients hold.
"""

from dataclasses import dataclass, field

import numpy as np

from klms.codec import Bernoulli, Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.block_coder import BlockCoder, BlockCompressor, BlockSettings, Once, Scalars
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.symbols import read_symbols, write_symbols
from klms.numerics.jit import UInt8

_NUMBER = 4


@dataclass(frozen=True)
class Mask(Compressor):
    """A mask drawn from the client's probabilities or, if not `sampled`, thresholded at one half."""

    layout: Layout
    sampled: bool = True

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        return self.pack(draw_mask(update, rng if self.sampled else None), key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        return Decoded(self.unpack(message, key))

    def pack(self, mask: UInt8, key: SharedKey | None = None) -> bytes:
        """Return a mask as bytes: a message for holders of the key, or a part of a file."""
        return wrap(_NUMBER, self.d, write_symbols(self.layout, mask, 2), key)

    def unpack(self, message: bytes, key: SharedKey | None = None) -> UInt8:
        return read_symbols(self.layout, unwrap(message, _NUMBER, self.d, key), 2)


def draw_mask(probabilities: Vector, rng: np.random.Generator | None) -> UInt8:
    """Sample a mask with these probabilities; without a generator, threshold them at one half."""
    ones = probabilities >= 0.5 if rng is None else rng.random(probabilities.size) < probabilities
    return ones.astype(np.uint8)


SAMPLED = Scheme(
    name="mask",
    title="Sampled masks, arithmetic-coded",
    reference="Isik et al., ICLR 2023",
    family="mask",
    settings=Settings,
    make=lambda layout, settings, threads: Mask(layout),
    codes="masks",
    wire_number=_NUMBER,
)
THRESHOLD = Scheme(
    name="mask-threshold",
    title="Masks by threshold, arithmetic-coded",
    reference="Li et al., SenSys 2021",
    family="mask",
    settings=Settings,
    make=lambda layout, settings, threads: Mask(layout, sampled=False),
    codes="masks",
    unbiased=lambda settings: False,
    wire_number=_NUMBER,
)


@dataclass(frozen=True)
class KLMSMask(BlockCompressor):
    """Masks sent through the codec, with the shared probabilities `side["theta"]` as `p`."""

    coder: BlockCoder
    _p: Once[Bernoulli] = field(default_factory=Once, compare=False, repr=False)

    def q(self, update: Vector) -> tuple[Bernoulli, Scalars]:
        return Bernoulli(update), ()

    def p(self, side: Side) -> Bernoulli:
        return self._p(side["theta"], Bernoulli)


MASK_KLMS = Scheme(
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
