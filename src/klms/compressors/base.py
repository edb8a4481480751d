"""What every compressor of dense updates offers."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from klms.codec import CorruptMessage, SharedKey

Vector = npt.NDArray[np.float32]
Side = Mapping[str, npt.NDArray[np.generic]]
"""Side information: what server and clients share besides the model. It goes out with every round."""


LARGEST_ENTRY = 1e15  # so that squares, sums and scales stay finite in float32


def checked(vector: Vector, d: int) -> Vector:
    """What every `encode` asks of its vector, before bytes are made that no decoder takes."""
    if vector.shape != (d,):
        raise ValueError(f"the update has shape {vector.shape}, the scheme is for {d} parameters")
    if not np.abs(vector).max(initial=0.0) <= LARGEST_ENTRY:  # false for NaN, too
        raise ValueError("the update is not finite, or as good as: training diverged; lower the learning rate")
    return vector


def reasonable(vector: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What a server asks of a decoded vector, before one client's number outweighs all others'."""
    if not np.abs(vector).max(initial=0.0) <= LARGEST_ENTRY:
        raise CorruptMessage(f"an entry is above {LARGEST_ENTRY:g}, or not a number")
    return vector


class Compressor(Protocol):
    """A scheme. It holds settings only; what changes from round to round is in `Side`, handed in and out."""

    def start(self) -> Side:
        """The side information of the first round."""
        ...

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        """The message of one client. `rng` is its private randomness."""
        ...

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        """What the server reads in it. Raises a `KLMSError` on any bytes that are no message of this scheme."""
        ...

    def learn(self, side: Side, messages: Sequence[bytes], vectors: Sequence[Vector]) -> Side:
        """The side information of the next round, from what was received and decoded in this one."""
        ...


class Stateless:
    """A scheme without side information: nothing to begin with, nothing to learn."""

    def start(self) -> Side:
        """Nothing."""
        return {}

    def learn(self, side: Side, messages: Sequence[bytes], vectors: Sequence[Vector]) -> Side:
        """Nothing changes."""
        return side
