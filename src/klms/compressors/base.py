"""The one interface of everything that becomes bytes: updates, masks, and samples of the codec."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from klms.codec import Decoded, SharedKey
from klms.errors import CorruptMessage, InvalidArgument, TrainingDiverged
from klms.numerics.jit import Float32

Vector = Float32
Side = Mapping[str, npt.NDArray[np.generic]]
"""Side information: what server and clients share besides the model. It goes out with every round."""

LARGEST_ENTRY = 1e15  # so that squares, sums and scales stay finite in float32


class SideLearner:
    """Gathers the next round's side information from this round's messages, one by one; here it stays unchanged."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def add(self, decoded: Decoded) -> None:
        pass

    def finish(self) -> Side:
        return self._side


class Compressor(ABC):
    """A scheme at its settings. It holds no state: what changes from round to round is in `Side`."""

    @property
    def message_factor(self) -> float:
        """How many times the median client's bits a message may spend; 0 where the settings bound its length."""
        return 0.0

    def start(self) -> Side:
        return {}

    @abstractmethod
    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        """Return one client's message. `rng` is the client's private randomness."""

    @abstractmethod
    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        """Read a message; raise a `KLMSError` on any bytes that are not a message of this scheme and round."""

    def learner(self, side: Side) -> SideLearner:
        return SideLearner(side)


def largest_entry(vector: npt.NDArray[np.generic]) -> float:
    """Return the largest magnitude in a vector, without a copy of it."""
    return max(-float(vector.min(initial=0)), float(vector.max(initial=0)))


def check_update(update: Vector, d: int) -> Vector:
    """Return `update` if a decoder would accept it: `d` finite entries of reasonable size."""
    if update.shape != (d,):
        raise InvalidArgument(f"the update has shape {update.shape}, but the scheme is for {d} parameters")
    if not largest_entry(update) <= LARGEST_ENTRY:  # false for NaN, too
        raise TrainingDiverged(
            f"the update is not finite or has entries above {LARGEST_ENTRY:g}: training diverged; "
            "lower the learning rate"
        )
    return update


def check_decoded(decoded: Decoded) -> Decoded:
    """Return `decoded` unless one of its entries could outweigh all other clients."""
    if not largest_entry(decoded.vector) <= LARGEST_ENTRY:
        raise CorruptMessage(f"a decoded entry is above {LARGEST_ENTRY:g} or not a number")
    return decoded
