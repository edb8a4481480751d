"""Binary masks, arithmetic-coded with the frequency of ones in each layer: what FedPM and FedMask send."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.symbols import read_symbols, write_symbols

_NUMBER = 4


@dataclass(frozen=True)
class Mask(Compressor):
    """A mask drawn from the client's probabilities, or, if not `sampled`, those of at least one half."""

    layout: Layout
    sampled: bool = True

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        return self.pack(draw_mask(update, rng if self.sampled else None))

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        return Decoded(self.unpack(message))

    def pack(self, mask: npt.NDArray[np.uint8]) -> bytes:
        """Return the message that holds this mask."""
        return wrap(_NUMBER, self.layout.d, write_symbols(self.layout, mask, 2))

    def unpack(self, message: bytes) -> npt.NDArray[np.uint8]:
        """Undo `pack`; the message is untrusted."""
        return read_symbols(self.layout, unwrap(message, _NUMBER, self.layout.d), 2)


def draw_mask(probabilities: Vector, rng: np.random.Generator | None) -> npt.NDArray[np.uint8]:
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
    wire_number=_NUMBER,
    codes="masks",
)
THRESHOLD = Scheme(
    name="mask-threshold",
    title="Masks by threshold, arithmetic-coded",
    reference="Li et al., SenSys 2021",
    family="mask",
    settings=Settings,
    make=lambda layout, settings, threads: Mask(layout, sampled=False),
    wire_number=_NUMBER,
    codes="masks",
    unbiased=lambda settings: False,
)
