"""QSGD-KLMS (paper, section 4.3): the ternary QSGD law (`s = 1`, eq. 4) against last round's frequencies.

`q` is over `{-1, 0, +1}` times the norm of the bucket, which travels as a side scalar. `p` is, for each coordinate,
`(n_a + prior f_a) / (C + prior)`: how often symbol `a` occurred in the last round, smoothed towards its expected
frequency in the bucket, so that no symbol has probability 0 and round 1 has a `p` at all. For a Gaussian update the
expected share of non-zero entries in a bucket of `n` is `sqrt(2 / (pi n))`.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import Field

from klms.codec import Categorical, Decoded, SharedKey
from klms.compressors.base import Compressor, Learner, Side, Vector, check_update
from klms.compressors.block_coder import BlockCoder, BlockSettings
from klms.compressors.layout import Layout
from klms.compressors.once import Once
from klms.compressors.qsgd import BucketSettings, bucket_norms, normalised
from klms.compressors.scheme import Scheme
from klms.errors import CorruptMessage

VALUES = (-1.0, 0.0, 1.0)
_SMALLEST_NORM = 6e-6  # float16 is within 1 % from here on


class KLMSQSGDSettings(BucketSettings, BlockSettings):
    """Settings of QSGD-KLMS."""

    prior: float = Field(10.0, gt=0, description="QSGD-KLMS: clients that the expected frequencies count for.")


def round_up(norms: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round each norm up to the next float16, which a message carries in half the bits.

    Any number from the norm up serves as the norm: `E[v_hat] = v` holds as long as the law and the message use the
    same one. If a norm is beyond float16, or so small that float16 has few bits left for it, all stay unchanged.
    """
    with np.errstate(over="ignore"):
        short = norms.astype(np.float16)
    short = np.where(short < norms, np.nextafter(short, np.float16(np.inf)), short)
    fits = np.isfinite(short) & ((norms == 0) | (norms >= _SMALLEST_NORM))
    return short.astype(np.float32) if fits.all() else norms


@dataclass(frozen=True)
class KLMSQSGD(Compressor):
    """Ternary updates at their KL; `prior` is how many clients the expected frequencies count for."""

    layout: Layout
    bucket: int
    prior: float
    coder: BlockCoder
    _p: Once[Categorical] = field(default_factory=Once, compare=False, repr=False)

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Boundaries of the buckets."""
        return self.layout.buckets(self.bucket)

    def start(self) -> Side:
        counts = np.zeros((2, self.layout.d), dtype=np.uint16)
        return {**self.coder.start(), "counts": counts, "count_of": np.array(0)}

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        update = check_update(update, self.layout.d)
        norms = round_up(bucket_norms(update, self.bounds))
        ratio = normalised(update, norms, self.bounds)
        minus, plus = np.clip(-ratio, 0, 1), np.clip(ratio, 0, 1)
        q = Categorical(np.stack([minus, 1 - minus - plus, plus], axis=1), VALUES)
        return self.coder.encode(q, self._frequencies(side), side, key=key, rng=rng, scalars=norms.tolist())

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        decoded = self.coder.decode(message, self._frequencies(side), side, key=key, scalars=self.bounds.size - 1)
        assert decoded.header is not None
        norms = np.array(decoded.header.scalars, dtype=np.float32)
        if (norms < 0).any():
            raise CorruptMessage("a norm is negative")
        scaled = decoded.vector * np.repeat(norms, np.diff(self.bounds))
        return replace(decoded, vector=scaled.astype(np.float32, copy=False))

    def learner(self, side: Side) -> Learner:
        return _FrequencyLearner(self, side)

    def _frequencies(self, side: Side) -> Categorical:
        return self._p(side["counts"], lambda counts: self._smoothed(side))

    def _smoothed(self, side: Side) -> Categorical:
        sizes = np.diff(self.bounds)
        each = np.repeat(np.minimum(np.sqrt(2 / (np.pi * sizes)), 0.9) / 2, sizes)
        minus, plus = (side["counts"].astype(np.float64) + self.prior * each) / (int(side["count_of"]) + self.prior)
        return Categorical(np.stack([minus, 1 - minus - plus, plus], axis=1), VALUES)


class _FrequencyLearner:
    def __init__(self, compressor: KLMSQSGD, side: Side) -> None:
        self._blocks = compressor.coder.learner(side)
        self._counts = np.zeros((2, compressor.layout.d), dtype=np.uint16)
        self._count = 0

    def add(self, decoded: Decoded) -> None:
        self._blocks.add(decoded)
        self._counts[0] += decoded.vector < 0
        self._counts[1] += decoded.vector > 0
        self._count += 1

    def finish(self) -> Side:
        return {**self._blocks.finish(), "counts": self._counts, "count_of": np.array(self._count)}


SCHEME = Scheme(
    name="qsgd-klms",
    title="Ternary QSGD against last round's frequencies",
    reference="Isik et al., AISTATS 2024",
    family="qsgd",
    settings=KLMSQSGDSettings,
    make=lambda layout, s, threads: KLMSQSGD(layout, s.bucket, s.prior, s.coder(layout.d, threads)),
    unbiased=lambda settings: False,  # the share of the update that a block conveys is below 1
    needs_side_information=True,
    operating_points=({"target": 6.0},),
)
