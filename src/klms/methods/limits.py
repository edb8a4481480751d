"""What one client can do to the others: its norm and its message are bounded, extreme values may be left out.

An update with more than `norm_factor` times the median norm of the round before is scaled down to that. The bound must
be known before the first message is added up, and to every client that computes the same average from relayed messages:
hence it comes from the state, and not from the round itself. The first round has no bound. If what exceeds the bound
that it leads to outweighs all the rest, the round is undone, and only the median is kept.

Messages are another matter: what is refused is not relayed, so no client has to come to the same conclusion, and the
messages of a round are small enough to be compared with each other before any of them is decoded.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from pydantic import Field

from klms.codec import Decoded, MessageInfo, inspect
from klms.compressors.scheme import Settings
from klms.compressors.trellis import product
from klms.errors import KLMSError, OutsizedMessage
from klms.numerics.jit import Float32, Float64, kernel


class LimitSettings(Settings):
    """Settings of methods that average updates of any size."""

    norm_factor: float = Field(
        4.0, ge=0, description="Clip updates to this many times the last round's median norm; 0 for no such bound."
    )
    max_norm: float = Field(0.0, ge=0, description="Clip updates to this norm; 0 for no fixed bound.")
    trim: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="Share of clients left out at either end of every coordinate; 0 for the mean, 0.5 for the median.",
    )


@dataclass(frozen=True)
class Limits:
    """Limits of a method; by default there are none."""

    factor: float = 0.0
    most: float = 0.0
    trimmed: int = 0
    """Clients at either end of a coordinate."""

    @classmethod
    def of(cls, settings: LimitSettings, participants: int) -> "Limits":
        return cls(settings.norm_factor, settings.max_norm, int(settings.trim * participants))


class NormBound:
    """Clips the updates of a round, and learns the median norm for the next."""

    def __init__(self, limits: Limits, known: float) -> None:
        self._limits = limits
        self._known = known  # median norm of the round before; 0 if there is none
        self._norms: list[float] = []
        self.clipped = 0
        bounds = [limits.factor * known, limits.most]
        self._bound = min((bound for bound in bounds if bound > 0), default=math.inf)

    def apply(self, decoded: Decoded) -> Decoded:
        """Return what counts of an update."""
        if not self._limits.factor and not self._limits.most:
            return decoded
        vector = np.asarray(decoded.vector, dtype=np.float32)
        norm = math.sqrt(product(vector, vector))  # the same on every machine
        self._norms.append(norm)
        if norm <= self._bound:
            return decoded
        self.clipped += 1
        return replace(decoded, vector=vector * np.float32(self._bound / norm))

    def median(self) -> float:
        """Return the median of this round's norms; clients that changed nothing say nothing."""
        return statistics.median_low([norm for norm in self._norms if norm > 0] or [self._known])

    def outweighed(self) -> bool:
        """Return whether a round without a bound was ruled by updates that the next round would clip."""
        most = self._limits.factor * self.median()
        if most == 0 or self._bound < math.inf:
            return False
        return sum(max(norm - most, 0.0) for norm in self._norms) > sum(min(norm, most) for norm in self._norms)


class MessageBound:
    """Refuses messages of a round that spend more than `factor` times the bits of the median client's; 0 refuses none.

    A client of KLMS sends as many blocks as its KL takes, so that no setting bounds its messages. Clients that changed
    nothing have no KL and say nothing. Of an even number, the upper median counts, so that of two messages neither is
    refused for the other's sake.
    """

    def __init__(self, factor: float, messages: Iterable[bytes] = ()) -> None:
        headers = [header for header in map(_header, messages) if header is not None and header.mean_kl > 0]
        self._median = statistics.median_high([_spent(header) for header in headers] or [math.inf])
        self._factor = factor or math.inf

    def check(self, message: bytes) -> None:
        """Raise an `OutsizedMessage` if the message is out of proportion; the decoder finds what else may be wrong."""
        header = _header(message)
        if header is not None and _spent(header) > self._factor * self._median:
            raise OutsizedMessage(
                f"it has {header.total_bytes:,} bytes and claims {header.mean_kl * header.blocks:,.0f} bits of KL; the "
                f"median client spends {self._median:,.0f} bits, and message_factor is {self._factor:g}"
            )


def _header(message: bytes) -> MessageInfo | None:
    """Return the header of a message of the codec; None for other bytes."""
    try:
        return inspect(message)
    except KLMSError:
        return None


def _spent(header: MessageInfo) -> float:
    """Return the bits of a message, or its KL if it claims to convey more than that."""
    return max(8.0 * header.total_bytes, header.mean_kl * header.blocks)


class TrimmedSum:
    """The sum of each coordinate's values without the `count` largest and smallest, value by value."""

    def __init__(self, d: int, count: int) -> None:
        self._low = np.full((count, d), np.inf, dtype=np.float32)
        self._high = np.full((count, d), -np.inf, dtype=np.float32)
        self._middle = np.zeros(d)
        self._added = 0

    def add(self, vector: Float32) -> None:
        _sift(vector, self._low, self._high, self._middle)
        self._added += 1

    def mean(self) -> Float64:
        """Return the mean of what is left; of few vectors, fewer are left out, so that one or two remain."""
        count, added = len(self._low), self._added
        if added > 2 * count:
            return self._middle / (added - 2 * count)
        values = np.concatenate([self._low, self._high])
        values = np.sort(values, axis=0)[max(0, count - added) :][:added]  # without empty places
        spared = (added - 1) // 2
        return np.asarray(values[spared : added - spared].mean(axis=0, dtype=np.float64))


@kernel
def _sift(vector: Float32, low: Float32, high: Float32, middle: Float64) -> None:
    """Put each value among the largest of its coordinate, what that drops among the smallest, and add what that drops.

    Empty places hold infinities.
    """
    for i in range(vector.size):
        value = vector[i]
        for k in range(high.shape[0]):
            if value > high[k, i]:
                value, high[k, i] = high[k, i], value
        if value == -np.inf:
            continue
        for k in range(low.shape[0]):
            if value < low[k, i]:
                value, low[k, i] = low[k, i], value
        if value < np.inf:
            middle[i] += np.float64(value)
