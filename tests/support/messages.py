"""Messages that several tests look at: those of docs/format.md, and ways to forge them."""

import zlib

import numpy as np

from klms import Bernoulli, Blocks, Categorical, Codec, Gaussian, SharedKey

KEY = SharedKey(seed=0x0123456789ABCDEF, round=7, client=0xFEDCBA9876543210)


def example(family: str, *, send_blocks: bool = False, scalars: tuple[float, ...] = (), memory: int = 0):
    """The examples of docs/format.md."""
    i = np.arange(20)
    if family == "bernoulli":
        q, p = Bernoulli((i + 1) / 32), Bernoulli((i + 3) / 32)
    elif family == "categorical":
        low, high = (i + 1) / 64, (i + 2) / 64
        q = Categorical(np.stack([low, 1 - low - high, high], axis=1), [-1, 0, 1])
        p = Categorical(np.stack([high, 1 - low - high, low], axis=1), [-1, 0, 1])
    else:
        q, p = Gaussian(i / 16, 1.0), Gaussian(i / 32, 1.0)
    blocks = Blocks([0, 3, 11, 12, 20])
    codec = Codec(bits=5, selection="greedy", memory=memory)
    message = codec.encode(q, p, blocks, key=KEY, send_blocks=send_blocks, scalars=scalars)
    return message, p, blocks


GOLDEN_WITH_EVERYTHING = (
    "4b4c0103 01050200 14000000 04000000 88c3b5e8 181c9034 b5c1a53d 003e00c0 0700c8c5 91aca080 013dac03 ba"
)


def sealed(body: bytes, key: SharedKey) -> bytes:
    """The body with a checksum that fits: what a malicious sender would send. Envelopes cover their key, too."""
    start = zlib.crc32(key.to_bytes()) if body[:2] == b"KB" else 0
    return bytes(body) + zlib.crc32(body, start).to_bytes(4, "little")


def resealed(message: bytes, key: SharedKey = KEY) -> bytes:
    """The message with another checksum, which fits."""
    return sealed(message[:-4], key)
