"""A message of the dense scheme, as a sequence of stages."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.envelope import OVERHEAD, unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.trellis import level_paths, sign_paths
from klms.compressors.trellis.low_rank import LowRank, LowRankPlan
from klms.compressors.trellis.outliers import Outliers, PriceCurve
from klms.compressors.trellis.paths import Paths
from klms.compressors.trellis.payload import HEAD_BYTES, Memories, Payload, section
from klms.compressors.trellis.pieces import Pieces
from klms.compressors.trellis.rates import MAX_RATE, MIN_RATE, SIGNS_UP_TO
from klms.compressors.trellis.sign_paths import MAX_MEMORY
from klms.errors import CorruptMessage, InvalidArgument
from klms.numerics.parallel import Progress

Effort = Literal["fast", "balanced", "best"]


class Search(NamedTuple):
    """Search steps that an encoder may take, each less than a nanosecond; one more bit of memory doubles their number.

    A step is a candidate of a block of signs, or a transition of the trellis of levels.
    """

    per_parameter: int
    free: int
    """Number of steps that any message may take, in about a twentieth of a second; this favours small models."""


_SEARCHES: dict[str, Search] = {"fast": Search(11, 0), "balanced": Search(42, 1 << 26), "best": Search(256, 1 << 26)}
"""The steps per parameter are those of memories of at least 2, 4 and 6 bits for signs, and 3, 5 and 8 for levels."""

NUMBER = 12
"""Number of the scheme in its messages."""
_OUTLIERS_PAY = 0.2  # bits per parameter from which `fast` looks for outliers
_MOSTLY = 0.5  # echo above which later messages can make up for what is left out of this one
# Bound on the ratio of a message's length to the length at its rate. The ratio was at most 0.99 in 1,800 honest
# messages, some of heavy-tailed or constant updates.
_SPARE_RATE = 1.25


class Stages(NamedTuple):
    """The stages of a message, in the order of encoding."""

    low_rank: LowRank
    outliers: Outliers
    paths: Paths


@dataclass(frozen=True)
class Trellis(Compressor):
    """The dense scheme at `rate` bits per parameter, for a model with this layout.

    >>> scheme = Trellis(Layout(("weight", "bias"), ((100, 30), (30,))), rate=2.0)
    >>> update = np.random.default_rng(0).standard_normal(3030, dtype=np.float32)
    >>> message = scheme.encode(update, {}, key=SharedKey(1, 2, 3), rng=np.random.default_rng(1))
    >>> decoded = scheme.decode(message, {}, key=SharedKey(1, 2, 3)).vector
    >>> len(message) < 800, bool(np.sum((decoded - update) ** 2) < 0.15 * np.sum(update**2))
    (True, True)
    """

    layout: Layout
    rate: float = 1.0
    effort: Effort = "balanced"
    threads: int | None = None
    echo: float = 0.0
    """Share of this message's error that the next vector is expected to contain. At 0, the estimate is unbiased; at 1,
    its error is smallest; values in between are a compromise (`paths.py`). The decoder does not depend on the echo."""
    agreed: bool = True
    """Whether the sender is bound to the rate: a message that is much longer, or has smaller pieces, is refused."""
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if not MIN_RATE <= self.rate <= MAX_RATE:
            raise InvalidArgument(f"rate must be from {MIN_RATE:g} to {MAX_RATE:g} bits per parameter, got {self.rate}")
        if not 0 <= self.echo <= 1:
            raise InvalidArgument(f"echo must be from 0 to 1, got {self.echo}")
        if self.effort not in _SEARCHES:
            raise InvalidArgument(f"effort must be one of {', '.join(_SEARCHES)}; got {self.effort!r}")

    @cached_property
    def pieces(self) -> Pieces:
        return Pieces.for_rate(self.layout, self.rate, self.threads)

    @property
    def memories(self) -> Memories:
        """Memory of both trellises: as much as the search steps of the effort allow.

        At low rates, there are few blocks of signs, so each of them may take more steps.
        """
        search = _SEARCHES[self.effort]
        steps = max(search.per_parameter, search.free // max(1, self.d))
        blocks = min(self.rate, SIGNS_UP_TO) / sign_paths.BITS
        signs = math.floor(math.log2(steps / blocks)) - sign_paths.BITS
        levels = max(memory for memory in level_paths.MEASURED_RATES if 1 << memory <= steps)
        return Memories(min(max(signs, 0), MAX_MEMORY), levels)

    @property
    def free_bits(self) -> float:
        """Number of bits of a message at this rate that are left for the three stages."""
        heads = OVERHEAD + HEAD_BYTES + self._stages(self.pieces, self.memories).paths.head_bytes(self.rate)
        return self.rate * self.d - 8 * heads

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        rest = self.pieces.gather(update)
        return self.encode_rest(rest, self.plan_products(rest, rng), key, rng)

    def plan_products(self, gathered: Vector, rng: np.random.Generator) -> LowRankPlan:
        """Return the low-rank part that the first stage would send: products of a column and a row.

        `gathered` is an update in the order of its pieces (`Pieces.gather`).
        """
        if self.effort == "fast":
            return LowRankPlan()
        return self._stages(self.pieces, self.memories).low_rank.plan(gathered, self.free_bits, rng)

    def price_curve(self, gathered: Vector, plan: LowRankPlan) -> PriceCurve:
        """Subtract the planned products from `gathered`; return the bits of the other stages at each price per bit."""
        stages = self._stages(self.pieces, self.memories)
        stages.low_rank.remove(plan, gathered)
        return stages.outliers.price_curve(gathered)

    def encode_rest(self, rest: Vector, plan: LowRankPlan, key: SharedKey, rng: np.random.Generator) -> bytes:
        """Return the message of `rest`, given the plan of its low-rank part.

        `rest` is an update in the order of its pieces (`Pieces.gather`); it is overwritten.
        """
        stages = self._stages(self.pieces, self.memories)
        bits = self.free_bits

        low_rank = stages.low_rank.encode(plan, rest, key, rng)
        bits -= 8 * len(section(low_rank))

        outliers = b""
        if self.effort != "fast" or self.rate >= _OUTLIERS_PAY:
            outliers = stages.outliers.take(rest, bits, key, rng)
            bits -= 8 * len(section(outliers))

        self.pieces.rotate(rest, key)
        paths = stages.paths.take(rest, bits, key, rng)

        payload = Payload(self.pieces, self.memories, low_rank, outliers, paths)
        return wrap(NUMBER, self.d, payload.to_bytes(), key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        most = most_bytes(self.rate, self.pieces) if self.agreed else None
        payload = Payload.read(unwrap(message, NUMBER, self.d, key, most), self.layout, self.threads)
        pieces = payload.pieces
        if self.agreed and pieces.smallest < self.pieces.smallest:
            raise CorruptMessage(f"pieces of {pieces.smallest} entries are too small at {self.rate:g} bits")
        if len(message) > most_bytes(MAX_RATE, pieces):
            raise CorruptMessage(f"{len(message)} bytes are too many for a message, at any rate")

        stages = self._stages(pieces, payload.memories)
        out = np.zeros(pieces.padded, dtype=np.float32)
        stages.paths.decode(payload.paths, key, out)
        pieces.rotate(out, key, backward=True)
        if payload.outliers:
            stages.outliers.decode(payload.outliers, key, out)
        if payload.low_rank:
            stages.low_rank.decode(payload.low_rank, key, out)
        return Decoded(pieces.scatter(out))

    def _stages(self, pieces: Pieces, memories: Memories) -> Stages:
        contracting = self.echo > _MOSTLY
        outliers = Outliers(pieces.regions, contracting)
        paths = Paths(pieces, memories, self.echo, contracting, self.progress)
        return Stages(LowRank(pieces, outliers), outliers, paths)


def most_bytes(rate: float, pieces: Pieces) -> int:
    """Return the maximum accepted length in bytes: `_SPARE_RATE` times the rate, plus room for headers and tables.

    The time to decode outliers and the low-rank part grows with their bytes, so this limit bounds the time as well.
    """
    heads = 64 * pieces.bounds.size + 16 * pieces.regions.sizes.size + 256
    return heads + int(_SPARE_RATE * rate * pieces.padded / 8)
