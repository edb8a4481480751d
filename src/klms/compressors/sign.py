"""SignSGD (Bernstein et al., 2018): one bit per parameter, and the paper's stochastic version of it."""

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector, check_update
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout, root_mean_squares
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.sections import read_signs, write_signs

_NUMBER = 2


class StochasticSettings(Settings):
    """Settings of stochastic signs."""

    scale: float = Field(2.0, gt=0, description="Stochastic SignSGD: M in root mean squares of the layer.")


def plus_probability(update: Vector, layout: Layout, scale: float) -> Vector:
    """`P(+1) = sigmoid(v / M)` (paper, eq. 5), with `M` = `scale` times the root mean square of the layer."""
    bounds = layout.buckets(0)
    widths = scale * root_mean_squares(update, bounds)
    factors = np.divide(1.0, widths, out=np.zeros(widths.size), where=widths > 0).astype(np.float32)
    ratio = update * np.repeat(factors, np.diff(bounds))
    return np.asarray(1 / (1 + np.exp(-np.clip(ratio, -30, 30))))


@dataclass(frozen=True)
class Sign(Compressor):
    """The sign of every entry; with a `scale`, drawn with probability `sigmoid(v / M)` instead."""

    layout: Layout
    scale: float | None = None

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        update = check_update(update, self.layout.d)
        if self.scale is None:
            plus = update >= 0
        else:
            plus = rng.random(update.size) < plus_probability(update, self.layout, self.scale)
        return wrap(_NUMBER, self.layout.d, write_signs(plus))

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        return Decoded(read_signs(unwrap(message, _NUMBER, self.layout.d), self.layout.d))


SCHEME = Scheme(
    name="signsgd",
    title="Signs",
    reference="Bernstein et al., ICML 2018",
    family="signsgd",
    settings=Settings,
    make=lambda layout, settings, threads: Sign(layout),
    wire_number=_NUMBER,
    unbiased=lambda settings: False,
    directions_only=True,
    operating_points=(),
)
STOCHASTIC = Scheme(
    name="signsgd-stochastic",
    title="Signs drawn with probability sigmoid(v / M)",
    reference="Isik et al., AISTATS 2024",
    family="signsgd",
    settings=StochasticSettings,
    make=lambda layout, settings, threads: Sign(layout, settings.scale),
    wire_number=_NUMBER,
    unbiased=lambda settings: False,
    directions_only=True,
    operating_points=(),
)
