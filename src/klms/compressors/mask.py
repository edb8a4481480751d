"""Vanilla FedPM's messages: a binary mask, arithmetic-coded with each layer's own frequency of ones.

The message: the number of ones of every layer (u32 each), then the words of constriction's range coder.
"""

from dataclasses import dataclass

import constriction
import numpy as np
import numpy.typing as npt

from klms.codec import CorruptMessage
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout

UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class MaskCoder:
    """Masks over a model's parameters."""

    layout: Layout

    def encode(self, mask: UInt8) -> bytes:
        """A client's message."""
        ones = [int(mask[part].sum()) for part in self.layout.parts]
        encoder = constriction.stream.queue.RangeEncoder()
        for part, size, count in zip(self.layout.parts, self.layout.sizes, ones, strict=True):
            if 0 < count < size:
                encoder.encode(
                    mask[part].astype(np.int32), constriction.stream.model.Bernoulli(count / size, perfect=False)
                )
        words: bytes = encoder.get_compressed().astype("<u4").tobytes()
        return wrap("mask", self.layout.d, np.array(ones, dtype="<u4").tobytes() + words)

    def decode(self, message: bytes) -> UInt8:
        """The mask in it."""
        payload = unwrap(message, "mask", self.layout.d)
        start = 4 * len(self.layout.parts)
        if len(payload) < start or len(payload) % 4:
            raise CorruptMessage("the mask is cut off")
        ones = np.frombuffer(payload[:start], dtype="<u4").tolist()
        decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(payload[start:], dtype="<u4").astype(np.uint32))
        mask = np.zeros(self.layout.d, dtype=np.uint8)
        for part, size, count in zip(self.layout.parts, self.layout.sizes, ones, strict=True):
            if 0 < count < size:
                try:
                    mask[part] = decoder.decode(constriction.stream.model.Bernoulli(count / size, perfect=False), size)
                except AssertionError as error:
                    raise CorruptMessage("the mask does not decode") from error
            else:
                mask[part] = count > 0
            if int(mask[part].sum()) != count:
                raise CorruptMessage("a layer has another number of ones than it says")
        return mask
