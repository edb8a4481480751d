"""The bench behind `klms bench codec`: nanoseconds per parameter, in one process, on one machine, in one run.

Machines are noisy: compare figures of one run with each other, and trust their ratios more than the figures themselves.
"""

import ctypes
import gc
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from klms.benchmarks import oracle
from klms.benchmarks.rows import shown
from klms.codec import Bernoulli, Categorical, Codec, Distribution, Gaussian, Selection, SharedKey, fixed_blocks
from klms.numerics.checks import check_name
from klms.numerics.parallel import cores

FAMILIES = ("bernoulli", "ternary", "gaussian")
BITS = (2, 4, 8, 12)
BLOCK = 500
TRELLISES = ((2, 0), (8, 0), (4, 4), (2, 6), (4, 6))
"""Pairs of index bits and memory for which the surviving part of the update is measured, the paper's pair first."""
KL_OF_BLOCK = 8.0
_ORACLE_WORK = 40_000_000  # candidates times coordinates, which take about a second


@dataclass(frozen=True)
class Row:
    """One measurement. The oracle, a plain NumPy codec, codes only as many coordinates as it can in about a second."""

    family: str = shown("family")
    bits: int = shown("bits", "d")
    memory: int = shown("memory", "d")
    d: int = shown("parameters", ",")
    threads: int = shown("threads", "d")
    encode_ns: float = shown("encode", ".1f")
    decode_ns: float = shown("decode", ".2f")
    oracle_ns: float | None = shown("NumPy", ",.0f")
    speedup: float | None = shown("x faster", ".0f")
    bits_per_parameter: float = shown("bits/parameter", ".4f")
    extra_bytes_per_parameter: float | None = shown("extra B/param", ".1f")


def laws(family: str, d: int, rng: np.random.Generator) -> tuple[Distribution, Distribution]:
    """Return `q` and `p` with a KL of about 8 bits in 500 coordinates, as in a round of training."""
    nats = KL_OF_BLOCK / BLOCK * np.log(2.0)
    if family == "bernoulli":
        theta = rng.uniform(0.05, 0.95, d)
        step = np.sqrt(2 * nats / np.mean(theta * (1 - theta)))
        logit = np.log(theta / (1 - theta)) + rng.normal(0, step, d)
        return Bernoulli(1 / (1 + np.exp(-logit))), Bernoulli(theta)
    if family == "ternary":
        table = rng.dirichlet([2.0, 6.0, 2.0], d)
        tilted = table * np.exp(rng.normal(0, np.sqrt(2.2 * nats / 0.6), table.shape))
        values = [-1.0, 0.0, 1.0]
        return Categorical(tilted / tilted.sum(axis=1, keepdims=True), values), Categorical(table, values)
    check_name("family", family, FAMILIES)
    return Gaussian(rng.normal(0, np.sqrt(2 * nats), d), 1.0), Gaussian(np.zeros(d), 1.0)


def measure(family: str, bits: int, d: int, threads: int, *, with_oracle: bool, memory: int = 0) -> Row:
    """Measure encoding and decoding: the fastest of several runs, after a first run that compiles the kernels.

    The time of decoding includes hashing `p`.

    With memory, blocks are smaller, so that the rate is the same as with `bits + memory` bits per block and no memory.
    """
    repeats = max(3, min(6_000_000 // d, 30))
    rng = np.random.default_rng(0)
    q, p = laws(family, d, rng)
    blocks = fixed_blocks(d, BLOCK * bits // (bits + memory))
    key = SharedKey(seed=1, round=2, client=3)
    codec = Codec(bits=bits, threads=threads, memory=memory)

    def encode() -> bytes:
        return codec.encode(q, p, blocks, key=key, rng=np.random.default_rng(1))

    def decode() -> None:
        p.__dict__.pop("digest", None)
        codec.decode(message, p, key=key, blocks=blocks)

    message = encode()
    decode()
    p.__dict__.pop("thresholds", None)  # computed again on first use, so that they count as memory of encoding
    extra = peak_extra_bytes(encode)
    encode_ns = _best(encode, repeats) / d * 1e9
    oracle_ns = _oracle_ns(q, p, bits) if with_oracle else None
    return Row(
        family=family,
        bits=bits,
        memory=memory,
        d=d,
        threads=threads,
        encode_ns=encode_ns,
        decode_ns=_best(decode, repeats) / d * 1e9,
        oracle_ns=oracle_ns,
        speedup=None if oracle_ns is None else oracle_ns / encode_ns,
        bits_per_parameter=8 * len(message) / d,
        extra_bytes_per_parameter=None if extra is None else extra / d,
    )


def run(
    *,
    families: Sequence[str] = FAMILIES,
    bits: Sequence[int] = BITS,
    d: int = 2_000_000,
    scaling: Sequence[int] = (100_000, 1_000_000, 10_000_000),
) -> Iterator[Row]:
    """Yield rows for every family at one size, then for Bernoulli at several sizes.

    The row of 8 bits per index without memory is followed by a row of 4 bits with memory 4. Both settings have 256
    candidates per block.
    """
    threads = cores()
    for family in families:
        for b in bits:
            yield measure(family, b, d, 1, with_oracle=True)
            if b == 8:
                yield measure(family, 4, d, 1, with_oracle=False, memory=4)
            if threads > 1:
                yield measure(family, b, d, threads, with_oracle=False)
    for size in scaling:
        yield measure("bernoulli", 8, size, 1, with_oracle=False)


def survived(
    bits: int, memory: int, selection: Selection, *, kl_over_bits: float = 1.0, d: int = 400_000, messages: int = 4
) -> float:
    """Measure the fraction of `q - p` that survives coding, for Bernoulli blocks.

    `p` is 1/2 everywhere, and every parameter has 0.05 bits of KL. Measured on one message of the default length, the
    fraction has a standard deviation of 0.004.
    """
    rate = 0.05
    shift = 0.1308722510154885  # KL(1/2 + shift, 1/2) is `rate`
    step = shift * np.random.default_rng(1).choice([-1.0, 1.0], d)
    q = Bernoulli(0.5 + step)
    p = Bernoulli(np.full(d, 0.5))
    blocks = fixed_blocks(d, round(bits * kl_over_bits / rate))
    codec = Codec(bits=bits, memory=memory, selection=selection)
    arrived = np.zeros(d)
    for client in range(messages):
        key = SharedKey(seed=1, round=2, client=client)
        message = codec.encode(q, p, blocks, key=key, rng=np.random.default_rng([2, client]))
        arrived += codec.decode(message, p, key=key, blocks=blocks) - 0.5
    return float(arrived @ step / (step @ step)) / messages


def peak_extra_bytes(work: Callable[[], object]) -> int | None:
    """Return by how many bytes the process's memory rises while `work` runs; None if the system does not report it."""
    gc.collect()  # otherwise, garbage that is collected while `work` runs would hide some of its memory
    try:
        ctypes.CDLL(None).malloc_trim(0)  # otherwise, freed memory that the process still holds would be used again
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    before = _status_kib("VmRSS")
    work()
    return max(_status_kib("VmHWM") - before, 0) * 1024


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"no {field} in the process's status")


def _oracle_ns(q: Distribution, p: Distribution, bits: int) -> float:
    count = max(_ORACLE_WORK >> bits, BLOCK) // BLOCK * BLOCK
    count = min(count, p.d)
    blocks = fixed_blocks(count, BLOCK)
    return _best(lambda: oracle.encode(q, p, blocks, bits=bits, rng=np.random.default_rng(2)), 1) / count * 1e9


def _best(work: Callable[[], object], repeats: int) -> float:
    return min(timeit.repeat(work, number=1, repeat=repeats))
