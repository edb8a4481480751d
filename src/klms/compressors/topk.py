"""Top-k: only the entries of largest magnitude. It is the scheme that most people would try first.

It is biased: use it with error feedback (Stich et al., 2018), where a client adds to its next update what it did not
send. The message: the number of entries (u32), the largest magnitude (f32), all magnitudes as fractions of the largest
(f16 each), then the positions and signs of the entries, range-coded.
"""

import math
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.envelope import read_magnitudes, unwrap, wrap, write_magnitudes
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.symbols import read_symbols, write_symbols
from klms.errors import CorruptMessage, SideInformationMismatch

_NUMBER = 8


class TopKSettings(Settings):
    """Settings of top-k."""

    keep: float = Field(0.01, gt=0, le=1, description="Top-k: share of the entries to send.")


@dataclass(frozen=True)
class TopK(Compressor):
    """The share `keep` of the entries, those of largest magnitude."""

    layout: Layout
    keep: float = 0.01

    @property
    def most_entries(self) -> int:
        return max(1, math.ceil(self.keep * self.d))

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: np.random.Generator) -> bytes:
        count = self.most_entries
        places = np.sort(np.argpartition(np.abs(update), update.size - count)[update.size - count :])
        places = places[update[places] != 0]
        symbols = np.zeros(update.size, dtype=np.uint8)
        symbols[places] = np.where(update[places] < 0, 2, 1)
        head = np.uint32(places.size).tobytes() + write_magnitudes(np.abs(update[places]))
        return wrap(_NUMBER, self.d, head + write_symbols(self.layout, symbols, 3), key)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        payload = unwrap(message, _NUMBER, self.d, key)
        count = int.from_bytes(payload[:4], "little")
        if count > self.most_entries:
            raise SideInformationMismatch(f"the message has {count} entries; {self.most_entries} were agreed")
        magnitudes, rest = read_magnitudes(payload[4:], count)
        symbols = read_symbols(self.layout, rest, 3)
        places = np.flatnonzero(symbols)
        if places.size != count:
            raise CorruptMessage(f"{places.size} positions for {count} magnitudes")
        vector = np.zeros(self.d, dtype=np.float32)
        vector[places] = np.array([0, 1, -1], dtype=np.float32)[symbols[places]] * magnitudes
        return Decoded(vector)


SCHEME = Scheme(
    name="topk",
    title="The largest entries, with error feedback",
    reference="Stich et al., NeurIPS 2018",
    settings=TopKSettings,
    make=lambda layout, settings, threads: TopK(layout, settings.keep),
    unbiased=lambda settings: False,
    needs_error_feedback=True,
    operating_points=({"keep": 0.001}, {"keep": 0.01}, {"keep": 0.1}),
    wire_number=_NUMBER,
)
