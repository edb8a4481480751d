"""QSGD (Alistarh et al., 2017): `s` levels of the norm of each bucket, rounded at random, Elias-coded.

Buckets are pieces of layers. The message: the number of non-zero entries (u32), the norms (f32 each), the codes.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import Field

from klms.codec import Decoded, SharedKey
from klms.compressors import elias
from klms.compressors.base import Compressor, Side, Vector, check_update
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.sections import read_scales, write_scales

_NUMBER = 3

Float32 = npt.NDArray[np.float32]


class BucketSettings(Settings):
    """Settings of schemes that normalise bucket by bucket."""

    bucket: int = Field(4096, ge=0, description="QSGD: entries that share a norm; 0 for one norm per layer.")


class QSGDSettings(BucketSettings):
    """Settings of QSGD."""

    levels: int = Field(1, ge=1, le=2**20, description="QSGD: levels of the norm.")


def bucket_norms(update: Vector, bounds: npt.NDArray[np.int64]) -> Float32:
    """Return the 2-norm of every bucket."""
    return np.sqrt(np.add.reduceat(update.astype(np.float64) ** 2, bounds[:-1])).astype(np.float32)


def normalised(update: Vector, norms: Float32, bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return `v_i / ||v||` with the norm of the bucket; 0 where the norm is 0."""
    widths = np.repeat(norms.astype(np.float64), np.diff(bounds))
    return np.divide(update, widths, out=np.zeros(update.size), where=widths > 0)


@dataclass(frozen=True)
class QSGD(Compressor):
    """Stochastic rounding to `levels` of the norm; `bucket` 0 means one norm per layer."""

    layout: Layout
    levels: int
    bucket: int

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Boundaries of the buckets."""
        return self.layout.buckets(self.bucket)

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        update = check_update(update, self.layout.d)
        norms = bucket_norms(update, self.bounds)
        ratio = normalised(update, norms, self.bounds)
        levels = np.floor(np.abs(ratio) * self.levels + rng.random(ratio.size)).astype(np.int64)
        places = np.flatnonzero(levels)
        runs = np.diff(places, prepend=-1) - 1
        codes = elias.write(runs, ratio[places] < 0, np.minimum(levels[places], self.levels), self.levels > 1)
        payload = np.uint32(places.size).tobytes() + write_scales(norms) + codes.tobytes()
        return wrap(_NUMBER, self.layout.d, payload)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        payload = unwrap(message, _NUMBER, self.layout.d)
        norms, codes = read_scales(payload[4:], self.bounds.size - 1)
        count = int.from_bytes(payload[:4], "little")
        places, values = elias.read(np.frombuffer(codes, dtype=np.uint8), count, self.layout.d, self.levels)
        vector = np.zeros(self.layout.d, dtype=np.float32)
        vector[places] = values / self.levels * norms[np.searchsorted(self.bounds, places, side="right") - 1]
        return Decoded(vector)


SCHEME = Scheme(
    name="qsgd",
    title="Stochastic rounding to levels of the norm, Elias-coded",
    reference="Alistarh et al., NeurIPS 2017",
    family="qsgd",
    settings=QSGDSettings,
    make=lambda layout, settings, threads: QSGD(layout, settings.levels, settings.bucket),
    wire_number=_NUMBER,
    operating_points=(
        {"levels": 1, "bucket": 4096},
        {"levels": 1, "bucket": 512},
        {"levels": 4, "bucket": 512},
        {"levels": 16, "bucket": 512},
    ),
)
