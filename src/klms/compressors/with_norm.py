"""Messages that carry the norm of their update, so that a receiver knows how much of the decoded update is noise.

The error of an unbiased scheme is orthogonal to the update, so the energy of the error is the energy of the decoded
update minus the energy of the update.

0  norm of the update (f32)   4  the message of the scheme
"""

from dataclasses import dataclass

import numpy as np

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, SideLearner, Vector
from klms.compressors.envelope import read_scales, write_scales


@dataclass(frozen=True)
class DecodedWithNorm(Decoded):
    """A decoded update, and its norm before coding, as the sender reports it."""

    norm: float = 0.0


class WithNorm(Compressor):
    """Any compressor; each message is preceded by the norm of the update.

    >>> from klms.compressors.layout import Layout
    >>> from klms.compressors.trellis import Trellis
    >>> scheme = WithNorm(Trellis(Layout(("weight",), ((3000,),)), rate=1.0))
    >>> update = np.ones(3000, dtype=np.float32)
    >>> message = scheme.encode(update, {}, key=SharedKey(1, 2, 3), rng=np.random.default_rng(1))
    >>> round(scheme.decode(message, {}, key=SharedKey(1, 2, 3)).norm**2)
    3000
    """

    def __init__(self, inner: Compressor) -> None:
        self.inner = inner
        self.layout = inner.layout
        self.rate = inner.rate

    @property
    def message_factor(self) -> float:
        return self.inner.message_factor

    def start(self) -> Side:
        return self.inner.start()

    def learner(self, side: Side) -> SideLearner:
        return self.inner.learner(side)

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        norm = np.linalg.norm(update.astype(np.float64))
        return write_scales(np.array([norm])) + self.inner.encode(update, side, key=key, rng=rng)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> DecodedWithNorm:
        (norm,), rest = read_scales(message, 1)
        decoded = self.inner.decode(rest, side, key=key)
        return DecodedWithNorm(decoded.vector, decoded.header, decoded.blocks, float(norm))
