"""The common interface of everything that is turned into bytes: updates, masks, and samples of the codec."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from klms.codec import Decoded, SharedKey
from klms.compressors.layout import Layout
from klms.errors import CorruptMessage, InvalidArgument, TrainingDiverged
from klms.numerics.jit import Float32

Vector = Float32
Side = Mapping[str, npt.NDArray[np.generic]]
"""Side information: what server and clients share besides the model. The server sends it in every round."""

LARGEST_DECODED = 1e15
"""Largest entry that a decoder returns, so that squares, sums and scales stay finite in float32."""
LARGEST_ENTRY = 1e12
"""Largest entry that can be encoded: at the lowest rate, noise makes entries up to 500 times as large."""
DIVERGED = f"the update is not finite or has entries above {LARGEST_ENTRY:g}: training diverged"
LOWER_LR = "lower the learning rate"


class SideLearner:
    """Gathers the next round's side information from this round's messages, one by one.

    This base class leaves the side information unchanged.
    """

    def __init__(self, side: Side) -> None:
        self._side = side

    def add(self, decoded: Decoded) -> None:
        pass

    def finish(self) -> Side:
        return self._side


class Compressor(ABC):
    """A scheme with chosen settings, for one model. It is stateless: what changes from round to round is in `Side`.

    A scheme implements `_encode` and `_decode`; `encode` and `decode` check their arguments and results.
    """

    layout: Layout
    rate: float | None = None
    """Bits per parameter; None for a scheme without this setting."""

    @property
    def d(self) -> int:
        """Number of parameters."""
        return self.layout.d

    @property
    def message_factor(self) -> float:
        """Maximum bits that a message may spend, relative to the median message; 0 if the settings bound its length."""
        return 0.0

    def start(self) -> Side:
        return {}

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        """Return one client's message. `rng` is the client's private randomness."""
        check_update(update, self.d, self.rate)
        return self._encode(update, side, key, rng)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        """Read a message; raise a `KLMSError` on any bytes that are not a message of this scheme and round.

        No entry of the result is so large that it could outweigh all other clients.
        """
        decoded = self._decode(message, side, key)
        if not largest_entry(decoded.vector) <= LARGEST_DECODED:  # false for NaN, too
            raise CorruptMessage(f"a decoded entry is above {LARGEST_DECODED:g} or not a number")
        return decoded

    @abstractmethod
    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        """Return the message of an update of `d` finite entries."""

    @abstractmethod
    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        """Read untrusted bytes; entries of the vector may still be too large, or not finite."""

    def learner(self, side: Side) -> SideLearner:
        return SideLearner(side)


def largest_entry(vector: npt.NDArray[np.generic]) -> float:
    """Return the largest magnitude in a vector, without a copy of it."""
    return max(-float(vector.min(initial=0)), float(vector.max(initial=0)))


def least_noise(bits: float) -> float:
    """Return the minimum energy of an unbiased scheme's noise at `bits` bits per parameter, relative to the update's.

    This is the minimum for a normally distributed vector; for a vector with more structure, the minimum is lower.
    """
    return 1 / (4**bits - 1)


def check_update(update: Vector, d: int, rate: float | None = None) -> None:
    """Raise unless a decoder would accept the update: `d` finite entries of reasonable size.

    The error names possible causes, such as the noise of messages at a low rate.
    """
    if update.shape != (d,):
        raise InvalidArgument(f"the update has shape {update.shape}, but the scheme is for {d} parameters")
    if not largest_entry(update) <= LARGEST_ENTRY:  # false for NaN, too
        causes = [DIVERGED, LOWER_LR]
        noise = 0.0 if rate is None else least_noise(rate)
        if noise > 1:
            causes.append(
                f"or raise the bits per parameter: at {rate:.2g}, the noise of a message has {noise:.2g} times the "
                "energy of the update or more, which only the average over many clients lowers"
            )
        raise TrainingDiverged("; ".join(causes))
