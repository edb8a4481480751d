"""QSGD (Alistarh et al., 2017): entries are rounded at random to multiples of `1/s` of the norm of their bucket.

Buckets are pieces of layers. The rounded entries are Elias-coded, or sent by KLMS. The message with Elias codes: the
number of non-zero entries (u32), the norms (f32 each), the codes.

QSGD-KLMS (paper, section 4.3) has the ternary distribution (`s = 1`, eq. 4) as `q`; the norms are sent as side scalars.
For each coordinate, `p` is `(n_a + prior f_a) / (C + prior)`: the frequency of symbol `a` in the last round, smoothed
towards its expected frequency in the bucket, so that no symbol has probability 0 and a `p` exists in round 1 as well.
For a Gaussian update the expected share of non-zero entries in a bucket of `n` is `sqrt(2 / (pi n))`.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
from pydantic import Field

from klms.codec import MAX_SCALARS, Categorical, Decoded, Sample, SharedKey, next_threshold
from klms.compressors import elias
from klms.compressors.base import Compressor, Side, SideLearner, Vector
from klms.compressors.block_coder import BlockCoder, BlockCompressor, BlockLearner, BlockSettings, Once, Scalars
from klms.compressors.envelope import read_scales, unwrap, wrap, write_scales
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.errors import CorruptMessage, InvalidArgument, SideInformationMismatch
from klms.numerics.jit import Float32, Float64, Int64, UInt16, kernel
from klms.numerics.parallel import over

_NUMBER = 3
_AT_ONCE = 1 << 17  # entries, approximately: 1 MB in float64, which the allocator keeps


class BucketSettings(Settings):
    """Settings of schemes that normalise bucket by bucket."""

    bucket: int = Field(4096, ge=0, description="QSGD: entries that share a norm; 0 for one norm per layer.")


class QSGDSettings(BucketSettings):
    """Settings of QSGD."""

    levels: int = Field(1, ge=1, le=2**20, description="QSGD: number of levels up to the norm.")


def bucket_norms(update: Vector, bounds: Int64) -> Float32:
    """Return the 2-norm of every bucket.

    Squares are computed in parts, because all of them in float64 would take twice the memory of the update.
    """
    squares = np.empty(bounds.size - 1)
    at_once = max(1, _AT_ONCE * squares.size // update.size)
    for first in range(0, squares.size, at_once):
        part = bounds[first : first + at_once + 1]
        values = update[part[0] : part[-1]].astype(np.float64)
        squares[first : first + at_once] = np.add.reduceat(np.square(values, out=values), part[:-1] - part[0])
    return np.sqrt(squares).astype(np.float32)


def normalised(update: Vector, norms: Float32, bounds: Int64) -> Float64:
    """Return `v_i / ||v||` with the norm of the bucket; 0 where the norm is 0."""
    widths = np.repeat(norms.astype(np.float64), np.diff(bounds))
    return np.divide(update, widths, out=np.zeros(update.size), where=widths > 0)


@dataclass(frozen=True)
class QSGD(Compressor):
    """Stochastic rounding to multiples of `1 / levels` of the norm; `bucket` 0 means one norm per layer."""

    layout: Layout
    levels: int
    bucket: int

    @cached_property
    def bounds(self) -> Int64:
        return self.layout.buckets(self.bucket)

    @cached_property
    def most_entries(self) -> int:
        """Limit on the non-zero entries of a message; a message needs more with probability below 1e-14.

        The absolute values of `n` entries add up to at most `sqrt(n)` norms, so that on average at most `s sqrt(n)` of
        them are rounded to levels other than 0. The variance of their number is below its mean.
        """
        sizes = np.diff(self.bounds)
        mean = float(np.minimum(sizes, self.levels * np.sqrt(sizes)).sum())
        return min(self.d, int(mean + 8 * math.sqrt(mean) + 40))

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        norms = bucket_norms(update, self.bounds)
        ratio = normalised(update, norms, self.bounds)
        levels = np.floor(np.abs(ratio) * self.levels + rng.random(ratio.size)).astype(np.int64)
        places = np.flatnonzero(levels)
        runs = np.diff(places, prepend=-1) - 1
        codes = elias.write(runs, ratio[places] < 0, np.minimum(levels[places], self.levels), self.levels > 1)
        payload = np.uint32(places.size).tobytes() + write_scales(norms) + codes.tobytes()
        return wrap(_NUMBER, self.d, payload, key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        payload = unwrap(message, _NUMBER, self.d, key)
        norms, codes = read_scales(payload[4:], self.bounds.size - 1)
        count = int.from_bytes(payload[:4], "little")
        if count > self.most_entries:
            raise CorruptMessage(f"{count} entries are not zero; there are never more than {self.most_entries}")
        places, values = elias.read(np.frombuffer(codes, dtype=np.uint8), count, self.d, self.levels)
        vector = np.zeros(self.d, dtype=np.float32)
        vector[places] = values / self.levels * norms[np.searchsorted(self.bounds, places, side="right") - 1]
        return Decoded(vector)


SCHEME = Scheme(
    name="qsgd",
    title="Stochastic rounding to levels of the norm, Elias-coded",
    reference="Alistarh et al., NeurIPS 2017",
    settings=QSGDSettings,
    make=lambda layout, settings, threads: QSGD(layout, settings.levels, settings.bucket),
    operating_points=(
        {"levels": 1, "bucket": 4096},
        {"levels": 1, "bucket": 512},
        {"levels": 4, "bucket": 512},
        {"levels": 16, "bucket": 512},
    ),
    wire_number=_NUMBER,
)


VALUES = (-1.0, 0.0, 1.0)
_MOST_RESCALED = 4.0
_SMALLEST_NORM = 6e-6  # the smallest number that float16 represents to within 1 %


class KLMSQSGDSettings(BucketSettings, BlockSettings):
    """Settings of QSGD-KLMS."""

    prior: float = Field(10.0, gt=0, description="QSGD-KLMS: weight of the expected frequencies, in clients.")
    rescale: bool = Field(False, description="QSGD-KLMS: scale the norms, to undo the shrinkage by block coding.")


def round_up(norms: Float32) -> Float32:
    """Round each norm up to the next float16, to halve its bits.

    If one of the norms would change by more than 1 %, all stay unchanged. Any number that is not below the norm is
    valid: `E[v_hat] = v` as long as `q` and the message use the same number.
    """
    with np.errstate(over="ignore"):
        short = norms.astype(np.float16)
    short = np.where(short < norms, np.nextafter(short, np.float16(np.inf)), short)
    fits = np.isfinite(short) & ((norms == 0) | (norms >= _SMALLEST_NORM))
    return short.astype(np.float32) if fits.all() else norms


@dataclass(frozen=True)
class KLMSQSGD(BlockCompressor):
    """Ternary updates at the cost of their KL; the expected frequencies have the weight of `prior` clients."""

    layout: Layout
    bucket: int
    prior: float
    coder: BlockCoder
    rescale: bool = False
    _p: Once[Categorical] = field(default_factory=Once, compare=False, repr=False)

    def __post_init__(self) -> None:
        norms = self.bounds.size - 1
        if norms > MAX_SCALARS:
            raise InvalidArgument(
                f"a bucket of {self.bucket} leads to {norms:,} norms, but a message holds at most {MAX_SCALARS:,}: "
                "set a larger bucket, or 0 for one norm per layer"
            )

    @cached_property
    def bounds(self) -> Int64:
        return self.layout.buckets(self.bucket)

    def start(self) -> Side:
        counts = np.zeros((2, self.d), dtype=np.uint16)
        return {**self.coder.start(), "counts": counts, "count_of": np.array(0)}

    def q(self, update: Vector) -> tuple[Categorical, Scalars]:
        norms = round_up(bucket_norms(update, self.bounds))
        rows = np.empty((len(VALUES), update.size), dtype=np.float32)
        over(self.bounds, self.coder.codec.threads, _ternary, update, norms, rows)
        scalars = (lambda symbols: self._rescaled(norms, update, symbols)) if self.rescale else norms.tolist()
        return Categorical.of_rows(rows, VALUES), scalars

    def _rescaled(self, norms: Float32, update: Vector, symbols: Sample) -> list[float]:
        """Scale the norms, within limits, so that the decoded update projected onto the update is the update itself."""
        along = float(update @ (symbols * np.repeat(norms, np.diff(self.bounds))))
        factor = min(max(float(update @ update) / along, 1.0), _MOST_RESCALED) if along > 0 else 1.0
        with np.errstate(over="ignore"):
            scaled = (norms * np.float32(factor)).astype(np.float16)
        return [float(norm) for norm in (scaled if np.isfinite(scaled).all() else norms)]

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        decoded = self.coder.decode(message, self.p(side), side, key, scalars=self.bounds.size - 1)
        assert decoded.header is not None
        norms = np.array(decoded.header.scalars, dtype=np.float32)
        if (norms < 0).any():
            raise CorruptMessage("a norm is negative")
        _scale(decoded.vector, norms, self.bounds)
        return decoded

    def learner(self, side: Side) -> SideLearner:
        return _FrequencyLearner(self, side)

    def p(self, side: Side) -> Categorical:
        return self._p(side["counts"], lambda counts: self._smoothed(side))

    def _smoothed(self, side: Side) -> Categorical:
        expected = np.minimum(np.sqrt(2 / (np.pi * np.diff(self.bounds))), 0.9) / 2
        thresholds = np.empty((2, self.d), dtype=np.uint16)
        counts, clients = cast(UInt16, side["counts"]), int(side["count_of"])
        if counts.dtype != np.uint16 or counts.shape != thresholds.shape:  # the kernel would read past the end
            raise SideInformationMismatch(f"the counts must be uint16 of shape {thresholds.shape}, got {counts.shape}")
        over(self.bounds, self.coder.codec.threads, _blend, counts, clients, expected, self.prior, thresholds)
        return Categorical.quantised(thresholds, VALUES)


@kernel
def _ternary(first: int, end: int, bounds: Int64, update: Vector, norms: Float32, rows: Float32) -> None:
    """Write the probabilities of -1, 0 and 1 (paper, eq. 4) for each entry of the buckets `first <= b < end`."""
    for b in range(first, end):
        norm = np.float64(norms[b])
        for i in range(bounds[b], bounds[b + 1]):
            ratio = np.float64(update[i]) / norm if norm > 0.0 else 0.0
            minus, plus = min(max(-ratio, 0.0), 1.0), min(max(ratio, 0.0), 1.0)
            rows[0, i], rows[1, i], rows[2, i] = minus, 1.0 - minus - plus, plus


@kernel
def _blend(
    first: int,
    end: int,
    bounds: Int64,
    counts: UInt16,
    clients: int,
    expected: Float64,
    prior: float,
    thresholds: UInt16,
) -> None:
    """Write the thresholds for the frequencies of -1, 0 and 1.

    The frequencies are averages of the clients' counts and of the expected frequencies, which weigh as much as `prior`
    clients.
    """
    for b in range(first, end):
        more = prior * expected[b]
        for i in range(bounds[b], bounds[b + 1]):
            minus = (np.float64(counts[0, i]) + more) / (clients + prior)
            plus = (np.float64(counts[1, i]) + more) / (clients + prior)
            zero = 1.0 - minus - plus
            total = minus + zero + plus  # 1, up to rounding
            below = np.float64(np.float32(minus / total))
            thresholds[0, i] = next_threshold(below, 0, 2)
            below += np.float64(np.float32(zero / total))
            thresholds[1, i] = next_threshold(below, int(thresholds[0, i]), 1)


@kernel
def _scale(vector: Sample, norms: Float32, bounds: Int64) -> None:
    for b in range(norms.size):
        vector[bounds[b] : bounds[b + 1]] *= norms[b]


class _FrequencyLearner(BlockLearner):
    def __init__(self, compressor: KLMSQSGD, side: Side) -> None:
        super().__init__(compressor.coder, side)
        self._counts = np.zeros((2, compressor.layout.d), dtype=np.uint16)
        self._count = 0

    def add(self, decoded: Decoded) -> None:
        super().add(decoded)
        self._counts[0] += decoded.vector < 0
        self._counts[1] += decoded.vector > 0
        self._count += 1

    def finish(self) -> Side:
        return {**super().finish(), "counts": self._counts, "count_of": np.array(self._count)}


QSGD_KLMS = Scheme(
    name="qsgd-klms",
    title="Ternary QSGD against last round's frequencies",
    reference="Isik et al., AISTATS 2024",
    family="qsgd",
    settings=KLMSQSGDSettings,
    make=lambda layout, s, threads: KLMSQSGD(layout, s.bucket, s.prior, s.coder(layout.d, threads), s.rescale),
    unbiased=lambda settings: False,  # the share of the update that a block conveys is below 1
    operating_points=({"target": 6.0},),
    needs_side_information=True,
)
