"""No compression: 32 bits a parameter. The baseline of all baselines (FedAvg)."""

from dataclasses import dataclass

import numpy as np

from klms.codec import CorruptMessage, SharedKey
from klms.compressors.base import Side, Stateless, Vector, checked
from klms.compressors.envelope import unwrap, wrap


@dataclass(frozen=True)
class Float32(Stateless):
    """The vector as it is."""

    d: int

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.d)
        return wrap("float32", self.d, vector.astype("<f4", copy=False).tobytes())

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        payload = unwrap(message, "float32", self.d)
        if len(payload) != 4 * self.d:
            raise CorruptMessage(f"{len(payload)} bytes for {self.d} float32 numbers")
        vector = np.frombuffer(payload, dtype="<f4").astype(np.float32)
        if not np.isfinite(vector).all():
            raise CorruptMessage("the vector is not finite")
        return vector
