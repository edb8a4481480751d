"""Limits on what one client can do to the others: robust averages, and a bound on the size of a client's message.

Updates are averaged unchanged, unless `robust` asks for an average that hostile clients cannot move far. Messages that
are too large are refused: the messages of a round are small, so they can wait in memory and be compared before any of
them is decoded. A refused message is not relayed, so clients need not decide which messages to refuse.
"""

import math
import statistics
from collections.abc import Iterable

from pydantic import Field

from klms.codec import MessageInfo, inspect
from klms.compressors.scheme import Settings
from klms.errors import KLMSError, OutsizedMessage


class RobustSettings(Settings):
    """Settings of methods that average updates of any size."""

    robust: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="Share of clients that may be hostile: clip updates to the median norm, and leave out the share "
        "farthest from the trimmed mean; 0 for the mean.",
    )


class MessageBound:
    """Refuses messages of a round that spend more than `factor` times as many bits as the median message.

    A `factor` of 0 refuses no message. A client of KLMS sends as many blocks as its KL needs, so that no setting bounds
    its messages. The median leaves out clients that changed nothing, and therefore have no KL. If the number of
    messages is even, the upper median is used: if there are only two messages, neither is refused because of the other.
    """

    def __init__(self, factor: float, messages: Iterable[bytes] = ()) -> None:
        headers = [header for header in map(_header, messages) if header is not None and header.mean_kl > 0]
        self._median = statistics.median_high([_spent(header) for header in headers] or [math.inf])
        self._factor = factor or math.inf

    def check(self, message: bytes) -> None:
        """Raise an `OutsizedMessage` if the message is out of proportion; the decoder finds other faults."""
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
    """Return the bits that a message spends: its length or the KL that it claims, whichever is larger."""
    return max(8.0 * header.total_bytes, header.mean_kl * header.blocks)
