"""Vanilla FedPM's messages: a binary mask, arithmetic-coded with each layer's own frequency of ones."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.symbols import read_symbols, write_symbols

UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class MaskCoder:
    """Masks over a model's parameters."""

    layout: Layout

    def encode(self, mask: UInt8) -> bytes:
        """A client's message."""
        return wrap("mask", self.layout.d, write_symbols(self.layout, mask, 2))

    def decode(self, message: bytes) -> UInt8:
        """The mask in it."""
        return read_symbols(self.layout, unwrap(message, "mask", self.layout.d), 2)
