"""QSGD (Alistarh et al., 2017): `s` levels of the norm of each bucket, rounded at random, Elias-coded.

Buckets are pieces of layers. The message: the number of non-zero entries (u32), the norms (f32 each), the codes.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from klms.codec import SharedKey
from klms.compressors import elias
from klms.compressors.base import Side, Stateless, Vector, checked
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.sections import read_scales, write_scales

Float32 = npt.NDArray[np.float32]


def bucket_norms(vector: Vector, bounds: npt.NDArray[np.int64]) -> Float32:
    """The 2-norm of every bucket."""
    return np.sqrt(np.add.reduceat(vector.astype(np.float64) ** 2, bounds[:-1])).astype(np.float32)


def normalised(vector: Vector, norms: Float32, bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """`v_i / ||v||` of the bucket; 0 where that is."""
    widths = np.repeat(norms.astype(np.float64), np.diff(bounds))
    return np.divide(vector, widths, out=np.zeros(vector.size), where=widths > 0)


@dataclass(frozen=True)
class QSGD(Stateless):
    """`bucket` 0 means a norm a layer."""

    layout: Layout
    levels: int
    bucket: int

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Where the buckets are."""
        return self.layout.buckets(self.bucket)

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.layout.d)
        norms = bucket_norms(vector, self.bounds)
        ratio = normalised(vector, norms, self.bounds)
        levels = np.floor(np.abs(ratio) * self.levels + rng.random(ratio.size)).astype(np.int64)
        places = np.flatnonzero(levels)
        runs = np.diff(places, prepend=-1) - 1
        codes = elias.write(runs, ratio[places] < 0, np.minimum(levels[places], self.levels), self.levels > 1)
        payload = np.uint32(places.size).tobytes() + write_scales(norms) + codes.tobytes()
        return wrap("qsgd", self.layout.d, payload)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        payload = unwrap(message, "qsgd", self.layout.d)
        norms, codes = read_scales(payload[4:], self.bounds.size - 1)
        count = int.from_bytes(payload[:4], "little")
        places, values = elias.read(np.frombuffer(codes, dtype=np.uint8), count, self.layout.d, self.levels)
        vector = np.zeros(self.layout.d, dtype=np.float32)
        vector[places] = values / self.levels * norms[np.searchsorted(self.bounds, places, side="right") - 1]
        return vector
