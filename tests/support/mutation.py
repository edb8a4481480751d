"""Hostile changes to messages."""

import numpy as np

from klms import SharedKey
from tests.support.messages import KEY, resealed


def mutate(message: bytes, other: bytes, rng: np.random.Generator, key: SharedKey = KEY) -> bytes:
    """A flip, a cut, an extension, a swap of fields, a splice or random bytes; half of them with a good checksum."""
    data = bytearray(message)
    kind = rng.integers(7)
    if kind == 0:
        for _ in range(rng.integers(1, 5)):
            bit = int(rng.integers(8 * len(data)))
            data[bit // 8] ^= 1 << bit % 8
    elif kind == 1:
        del data[int(rng.integers(len(data))) :]
    elif kind == 2:
        data += rng.bytes(int(rng.integers(1, 40)))
    elif kind == 3:
        a, b = rng.integers(0, min(28, len(data) - 4), 2)
        size = int(rng.integers(1, 5))
        data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    elif kind == 4:
        cut = int(rng.integers(len(data)))
        data = data[:cut] + other[cut:]
    elif kind == 5:
        position = int(rng.integers(4, 32))
        data[position : position + 4] = rng.choice([0, 1, 255, 2**31, 2**32 - 1]).astype("<u4").tobytes()
    else:
        data = bytearray(rng.bytes(int(rng.integers(0, 120))))
        data[:3] = message[:3]
    return resealed(bytes(data), key) if rng.random() < 0.5 and len(data) >= 4 else bytes(data)
