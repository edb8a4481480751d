"""SignSGD (Bernstein et al., 2018): one bit a parameter, and the paper's stochastic version of it."""

from dataclasses import dataclass

import numpy as np

from klms.codec import SharedKey
from klms.compressors.base import Side, Stateless, Vector, checked
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout, root_mean_squares
from klms.compressors.sections import read_signs, write_signs


def plus_probability(vector: Vector, layout: Layout, scale: float) -> Vector:
    """`P(+1) = sigmoid(v / M)` (paper, eq. 5), with `M` = `scale` times the root mean square of the layer."""
    bounds = layout.buckets(0)
    widths = scale * root_mean_squares(vector, bounds)
    factors = np.divide(1.0, widths, out=np.zeros(widths.size), where=widths > 0).astype(np.float32)
    ratio = vector * np.repeat(factors, np.diff(bounds))
    return np.asarray(1 / (1 + np.exp(-np.clip(ratio, -30, 30))))


@dataclass(frozen=True)
class Sign(Stateless):
    """The sign of every entry; with a `scale`, drawn with probability `sigmoid(v / M)` instead."""

    layout: Layout
    scale: float | None = None

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.layout.d)
        if self.scale is None:
            plus = vector >= 0
        else:
            plus = rng.random(vector.size) < plus_probability(vector, self.layout, self.scale)
        return wrap("sign", self.layout.d, write_signs(plus))

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        return read_signs(unwrap(message, "sign", self.layout.d), self.layout.d)
