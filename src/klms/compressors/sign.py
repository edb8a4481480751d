"""SignSGD (Bernstein et al., 2018): one bit per parameter; the paper's stochastic version, without and with KLMS.

SignSGD-KLMS (paper, section 4.3) has `q = Bern(sigmoid(v / M))`, where 1 stands for a plus, and `p = Bern(1/2)`.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from pydantic import Field

from klms.codec import Bernoulli, Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.block_coder import BlockCoder, BlockCompressor, BlockSettings, Scalars
from klms.compressors.envelope import read_signs, unwrap, wrap, write_signs
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings

_NUMBER = 2


class StochasticSettings(Settings):
    """Settings of stochastic signs."""

    scale: float = Field(2.0, gt=0, description="Stochastic SignSGD: scale M, in root mean squares of the layer.")


def plus_probability(update: Vector, layout: Layout, scale: float) -> Vector:
    """Return `P(+1) = sigmoid(v / M)` (paper, eq. 5), with `M` = `scale` times the root mean square of the layer."""
    bounds = layout.buckets(0)
    squares = np.add.reduceat(update.astype(np.float64) ** 2, bounds[:-1])
    widths = scale * np.sqrt(squares / np.diff(bounds))
    factors = np.divide(1.0, widths, out=np.zeros(widths.size), where=widths > 0)
    factors = np.minimum(factors, np.finfo(np.float32).max).astype(np.float32)  # finite for subnormal entries
    ratio = update * np.repeat(factors, np.diff(bounds))
    return np.asarray(1 / (1 + np.exp(-np.clip(ratio, -30, 30))))


@dataclass(frozen=True)
class Sign(Compressor):
    """The sign of every entry; with a `scale`, drawn with probability `sigmoid(v / M)` instead."""

    layout: Layout
    scale: float | None = None

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        if self.scale is None:
            plus = update >= 0
        else:
            plus = rng.random(update.size) < plus_probability(update, self.layout, self.scale)
        return wrap(_NUMBER, self.d, write_signs(plus), key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        return Decoded(read_signs(unwrap(message, _NUMBER, self.d, key), self.d))


SCHEME = Scheme(
    name="signsgd",
    title="Signs",
    reference="Bernstein et al., ICML 2018",
    settings=Settings,
    make=lambda layout, settings, threads: Sign(layout),
    unbiased=lambda settings: False,
    default_step=0.002,
    operating_points=(),
    wire_number=_NUMBER,
)
STOCHASTIC = Scheme(
    name="signsgd-stochastic",
    title="Signs drawn with probability sigmoid(v / M)",
    reference="Isik et al., AISTATS 2024",
    family="signsgd",
    settings=StochasticSettings,
    make=lambda layout, settings, threads: Sign(layout, settings.scale),
    unbiased=lambda settings: False,
    default_step=0.01,  # larger, because the mean of stochastic signs has a smaller norm
    operating_points=(),
    wire_number=_NUMBER,
)


class KLMSSignSettings(StochasticSettings, BlockSettings):
    """Settings of SignSGD-KLMS."""


@dataclass(frozen=True)
class KLMSSign(BlockCompressor):
    """Signs drawn with probability `sigmoid(v / M)`, at the cost of their KL to a fair coin."""

    layout: Layout
    scale: float
    coder: BlockCoder

    def q(self, update: Vector) -> tuple[Bernoulli, Scalars]:
        return Bernoulli(plus_probability(update, self.layout, self.scale)), ()

    def p(self, side: Side) -> Bernoulli:
        return self._coin

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        decoded = super()._decode(message, side, key)
        signs = decoded.vector * np.float32(2)
        signs -= 1
        return replace(decoded, vector=signs)

    @cached_property
    def _coin(self) -> Bernoulli:
        return Bernoulli(np.full(self.d, 0.5, dtype=np.float32))


SIGN_KLMS = Scheme(
    name="signsgd-klms",
    title="Stochastic signs at their KL to a fair coin",
    reference="Isik et al., AISTATS 2024",
    family="signsgd",
    settings=KLMSSignSettings,
    make=lambda layout, s, threads: KLMSSign(layout, s.scale, s.coder(layout.d, threads)),
    unbiased=lambda settings: False,
    default_step=0.01,
    operating_points=(),
    needs_side_information=True,
)
