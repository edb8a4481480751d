"""No compression: 32 bits per parameter. The baseline of all baselines (FedAvg)."""

from dataclasses import dataclass

import numpy as np

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.errors import CorruptMessage

_NUMBER = 1


@dataclass(frozen=True)
class Float32(Compressor):
    """The update itself."""

    layout: Layout

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        return wrap(_NUMBER, self.d, update.astype("<f4", copy=False).tobytes(), key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        payload = unwrap(message, _NUMBER, self.d, key)
        if len(payload) != 4 * self.d:
            raise CorruptMessage(f"{len(payload)} bytes cannot hold {self.d} float32 numbers")
        return Decoded(np.frombuffer(payload, dtype="<f4").astype(np.float32))


SCHEME = Scheme(
    name="float32",
    title="Federated averaging, float32 differences",
    reference="McMahan et al., AISTATS 2017",
    settings=Settings,
    make=lambda layout, settings, threads: Float32(layout),
    operating_points=(),
    wire_number=_NUMBER,
)
