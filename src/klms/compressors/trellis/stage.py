"""The interface of the three stages of the dense scheme."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np

from klms.codec import SharedKey
from klms.numerics.jit import Float32

P = TypeVar("P")


class Stage(ABC, Generic[P]):
    """A stage sends its part of an update and leaves the rest to the next stage.

    Vectors are in the order of the pieces (`Pieces.gather`).
    """

    @abstractmethod
    def plan(self, rest: Float32, bits: float, rng: np.random.Generator) -> P:
        """Decide what to send if this stage and the following stages have `bits` bits in total."""

    @abstractmethod
    def encode(self, plan: P, rest: Float32, key: SharedKey, rng: np.random.Generator) -> bytes:
        """Remove the planned part from `rest`, in place, and return this part as bytes; empty if nothing is sent."""

    @abstractmethod
    def decode(self, content: bytes, key: SharedKey, out: Float32) -> None:
        """Add to `out`, in place, the part that the untrusted content holds."""

    def take(self, rest: Float32, bits: float, key: SharedKey, rng: np.random.Generator) -> bytes:
        """Plan and encode."""
        return self.encode(self.plan(rest, bits, rng), rest, key, rng)
