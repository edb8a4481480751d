"""A second decoder, from docs/format.md alone: plain Python integers, no kernel of klms, no speed.

It also scores candidates, so that tests know which one the encoder should like best.
"""

import struct
from dataclasses import dataclass

import numpy as np

from klms import Bernoulli, Blocks, Categorical, Distribution, Gaussian, SharedKey
from klms.numerics.quantiles import normal_quantiles

MASK = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return tuple(c)


def word(key: SharedKey, stream: int, n: int) -> int:
    counter = (stream + n // 8, key.round, key.client & MASK, key.client >> 32)
    output = philox(counter, (key.seed & MASK, key.seed >> 32))[n % 8 // 2]
    return output >> 16 if n % 2 else output & 0xFFFF


def candidate_words(key: SharedKey, m: int, start: int, n: int, k: int) -> list[int]:
    words = []
    window = word(key, 1 << 30, m) % 1024
    for o in range(n):
        u = word(key, 0, start + o)
        for j in range(16):
            if k >> j & 1:
                u ^= word(key, 1 << 31, 16 * (window + o) + j)
        words.append(u)
    return words


def thresholds_of(p: Distribution, i: int) -> list[int]:
    """Cumulative thresholds of coordinate `i`, 0 first and 65536 last, from the float32 parameters."""
    if isinstance(p, Bernoulli):
        first = int(np.rint(float(p.probability[i]) * 65536))
        return [0, min(max(first, 1), 65535), 65536]
    symbols = p.values.size
    out, total = [0], 0.0
    for a in range(symbols - 1):
        total += float(p.probabilities[a, i])
        out.append(min(max(int(np.rint(total * 65536)), out[-1] + 1), 65536 - (symbols - 1 - a)))
    return [*out, 65536]


def value(p: Distribution, i: int, u: int) -> np.generic:
    if isinstance(p, Gaussian):
        return np.float32(p.mean[i] + np.float32(p.std[i] * normal_quantiles()[u]))
    symbol = sum(u >= t for t in thresholds_of(p, i)[1:-1])
    return p.values[symbol]


def score(q: Distribution, p: Distribution, i: int, u: int) -> float:
    """log q/p of the value of word `u` at coordinate `i`, in nats."""
    if isinstance(p, Gaussian):
        z = float(normal_quantiles()[u])
        y = float(p.mean[i]) + float(p.std[i]) * z
        q_std, p_std = float(q.std[i]), float(p.std[i])
        return np.log(p_std / q_std) + z * z / 2 - ((y - float(q.mean[i])) / q_std) ** 2 / 2
    edges = thresholds_of(p, i)
    symbol = sum(u >= t for t in edges[1:-1])
    mass_p = (edges[symbol + 1] - edges[symbol]) / 65536
    if isinstance(q, Bernoulli):
        mass_q = float(q.probability[i]) if symbol == 0 else 1 - float(q.probability[i])
    else:
        assert isinstance(q, Categorical)
        mass_q = float(q.probabilities[symbol, i])
    return float(np.log(max(mass_q, 2.0**-24) / mass_p))


@dataclass
class Parsed:
    bits: int
    memory: int
    d: int
    blocks: int
    indices: list[int]


def parse(message: bytes) -> Parsed:
    """The header and the indices, read off the layout table of the document."""
    version, bits, memory = message[2], message[5], 0
    if version == 2:
        bits, memory = message[5] % 16 + 1, message[5] // 16
    d, blocks = struct.unpack_from("<II", message, 8)
    size = (blocks * bits + 7) // 8
    number = int.from_bytes(message[len(message) - 4 - size : len(message) - 4], "little")
    return Parsed(bits, memory, d, blocks, [number >> (m * bits) & ((1 << bits) - 1) for m in range(blocks)])


def decode(message: bytes, p: Distribution, key: SharedKey, blocks: Blocks) -> np.ndarray:
    parsed = parse(message)
    out = []
    candidate = 0
    for m, k in enumerate(parsed.indices):
        if m % 256 == 0:
            candidate = 0
        candidate = (candidate << parsed.bits | k) % 2 ** (parsed.memory + parsed.bits)
        start, end = int(blocks.bounds[m]), int(blocks.bounds[m + 1])
        words = candidate_words(key, m, start, end - start, candidate)
        out += [value(p, start + o, u) for o, u in enumerate(words)]
    return np.array(out)
