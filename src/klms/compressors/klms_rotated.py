"""The codec as an unbiased quantiser of any update, at any rate: rotate, then take the nearest shared candidate.

After the rotation a piece, scaled to variance 1, looks like draws `z` of N(0, 1). At `R` bits per coordinate the best
that can be done (the test channel of rate-distortion theory) is `y | z ~ N(c z, 1 - c^2)` with `c^2 = 1 - 2^(-2R)` and
`y ~ N(0, 1)`: that is `q`, `p` is N(0, 1), and the codec picks the likeliest of `2^bits` shared candidates for each
block of `bits / R` coordinates. As in EDEN, the scale `|v|^2 / <Rv, y>` of a piece makes the estimate unbiased over
rotations.

EDEN's scalar levels stay away from the limit `1 / (2^(2R) - 1)` of the error; blocks come closer the more bits they
have. The message is the codec's own, with one side scalar per piece: its scale.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from pydantic import Field

from klms.codec import MAX_BITS, MAX_BLOCK_SIZE, Blocks, Codec, Decoded, Gaussian, MessageInfo, SharedKey
from klms.compressors.base import Compressor, Side, Vector, check_update
from klms.compressors.envelope import check_scales
from klms.compressors.rotation import Rotation, piece_holding
from klms.compressors.scheme import Scheme, Settings
from klms.errors import InvalidArgument, SideInformationMismatch

MAX_RATE = 4.0
_BLOCKS_OF_A_PIECE = 16  # at least: a scale that rests on fewer is unreliable


class KLMSRotatedSettings(Settings):
    """Settings of `klms-rotated`."""

    rate: float = Field(1.0, gt=0, le=MAX_RATE, description="klms-rotated: bits per parameter; may be a fraction.")
    bits: int = Field(10, ge=1, le=MAX_BITS, description="KLMS: bits per block index.")


@dataclass(frozen=True)
class KLMSRotated(Compressor):
    """`rate` bits per parameter; more `bits` per block mean less error, and each doubles the encoding time."""

    d: int
    rate: float = 1.0
    bits: int = 10
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rate <= min(MAX_RATE, self.bits):
            raise InvalidArgument(
                f"rate must be above 0, at most {MAX_RATE:g} and at most bits ({self.bits}), got {self.rate}"
            )

    @cached_property
    def rotation(self) -> Rotation:
        return Rotation(self.d, self.threads, piece_holding(_BLOCKS_OF_A_PIECE * self.bits / self.rate))

    @cached_property
    def codec(self) -> Codec:
        return Codec(bits=self.bits, selection="greedy", threads=self.threads)

    @cached_property
    def p(self) -> Gaussian:
        return Gaussian(np.zeros(self.rotation.padded, dtype=np.float32), 1.0)

    @cached_property
    def blocks(self) -> Blocks:
        """Blocks of `bits / rate` coordinates each, as nearly as whole numbers allow."""
        count = max(round(self.rotation.padded * self.rate / self.bits), -(-self.rotation.padded // MAX_BLOCK_SIZE))
        ends = np.linspace(0, self.rotation.padded, min(count, self.rotation.padded) + 1)
        return Blocks(np.round(ends).astype(np.int64))

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        update = check_update(update, self.d)
        rotated = self.rotation.apply(update, key)
        squares = self.rotation.sums(rotated * rotated)
        sizes = self.rotation.sizes
        correlation = math.sqrt(1 - 2 ** (-2 * self.rate))
        factors = np.divide(sizes, squares, out=np.zeros(sizes.size), where=squares > 0) ** 0.5 * correlation
        q = Gaussian(self.rotation.scaled(rotated, factors.astype(np.float32)), 2.0**-self.rate)
        chosen = self.codec.choose(q, self.p, self.blocks, key=key)
        products = self.rotation.sums(rotated * self.codec.candidates(chosen.indices, self.p, self.blocks, key=key))
        scales = np.divide(squares, products, out=np.zeros(sizes.size), where=products > 0)
        return self.codec.write(chosen, self.p, self.blocks, key=key, scalars=scales.tolist())

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        decoded = self.codec.read(message, self.p, key=key, blocks=self.blocks, check=self._check)
        assert decoded.header is not None
        scales = check_scales(np.array(decoded.header.scalars, dtype=np.float32))
        sample = np.asarray(decoded.vector, dtype=np.float32)
        return replace(decoded, vector=self.rotation.undo(self.rotation.scaled(sample, scales), key))

    def _check(self, header: MessageInfo) -> None:
        if header.carries_blocks or header.bits != self.bits or len(header.scalars) != self.rotation.sizes.size:
            raise SideInformationMismatch("the message has other bits, blocks or scales than were agreed")


SCHEME = Scheme(
    name="klms-rotated",
    title="Shared candidates after a random rotation, any rate",
    reference="klms; compare `klms bench mean`",
    settings=KLMSRotatedSettings,
    make=lambda layout, settings, threads: KLMSRotated(layout.d, settings.rate, settings.bits, threads),
    operating_points=tuple({"rate": rate, "bits": bits} for rate in (0.05, 0.1, 0.25, 0.5, 1, 1.5) for bits in (8, 10)),
)
