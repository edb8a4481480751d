"""Whatever arrives: a typed error or a valid sample, and no more memory than the sample needs."""

import struct
import zlib

import numpy as np
import pytest

from klms import (
    Bernoulli,
    Blocks,
    Categorical,
    Codec,
    CorruptMessage,
    Gaussian,
    KLMSError,
    SharedKey,
    SideInformationMismatch,
    adaptive_blocks,
    fixed_blocks,
)
from klms.benchmarks.codec import peak_extra_bytes
from tests.support.mutation import mutate

D = 300
KEY = SharedKey(seed=1, round=2, client=3)


def corpus() -> list[tuple[bytes, object, Blocks]]:
    rng = np.random.default_rng(0)
    theta = rng.uniform(0.1, 0.9, D)
    table = rng.dirichlet([1, 3, 1], D)
    pairs = [
        (Bernoulli(np.clip(theta + 0.1, 0, 1)), Bernoulli(theta)),
        (Categorical(table[::-1], [-1, 0, 1]), Categorical(table, [-1, 0, 1])),
        (Gaussian(rng.normal(0, 0.5, D), 1.0), Gaussian(np.zeros(D), 1.0)),
    ]
    out = []
    for q, p in pairs:
        blocks = adaptive_blocks(q.kl(p), target=5.0)
        for bits, send, scalars in ((5, True, (1.0,)), (8, False, ())):
            codec = Codec(bits=bits)
            out.append((codec.encode(q, p, blocks, key=KEY, rng=rng, send_blocks=send, scalars=scalars), p, blocks))
    return out


@pytest.mark.parametrize("mutants", [50_000, pytest.param(4_000_000, marks=pytest.mark.soak)])
def test_hostile_messages(mutants):
    rng = np.random.default_rng(1)
    good = corpus()
    raised: dict[str, int] = {}
    decoded = []
    for message, p, blocks in good:
        Codec().decode(message, p, key=KEY, blocks=blocks)

    def attack() -> None:
        for n in range(mutants):
            message, p, blocks = good[n % len(good)]
            hostile = mutate(message, good[int(rng.integers(len(good)))][0], rng)
            try:
                sample = Codec().decode(hostile, p, key=KEY, blocks=blocks if n % 3 else None)
            except KLMSError as error:
                raised[type(error).__name__] = raised.get(type(error).__name__, 0) + 1
            else:
                decoded.append(sample.shape == (D,) and bool(np.isfinite(sample).all()))

    extra = peak_extra_bytes(attack)
    assert extra is None or extra < 64 << 20
    assert all(decoded)
    assert len(decoded) + sum(raised.values()) == mutants
    assert set(raised) == {"CorruptMessage", "UnsupportedMessage", "SideInformationMismatch"}
    assert min(*raised.values(), len(decoded)) > 1000  # the mutations reach every way out, and often


def test_a_desynchronised_peer_is_told_10_000_times():
    rng = np.random.default_rng(2)
    theta = rng.uniform(0.1, 0.9, D)
    p, q = Bernoulli(theta), Bernoulli(np.clip(theta + 0.1, 0, 1))
    blocks = fixed_blocks(D, 60)
    codec = Codec(bits=4)
    mismatches = 0
    for n in range(10_000):
        key = SharedKey(seed=int(rng.integers(2**62)), round=int(rng.integers(2**31)), client=int(rng.integers(2**62)))
        message = codec.encode(q, p, blocks, key=key, rng=rng)
        wrong_p, wrong_key, wrong_blocks = p, key, blocks
        what = n % 5
        if what == 0:
            other = theta.copy()
            other[int(rng.integers(D))] += 2.0**-15
            wrong_p = Bernoulli(other)
        elif what == 1:
            wrong_key = SharedKey(key.seed ^ 1 << int(rng.integers(63)), key.round, key.client)
        elif what == 2:
            wrong_key = SharedKey(key.seed, key.round + 1, key.client)
        elif what == 3:
            wrong_key = SharedKey(key.seed, key.round, key.client ^ 1 << int(rng.integers(63)))
        else:
            bounds = blocks.bounds.copy()
            bounds[int(rng.integers(1, len(blocks)))] += 1
            wrong_blocks = Blocks(bounds)
        try:
            codec.decode(message, wrong_p, key=wrong_key, blocks=wrong_blocks)
        except SideInformationMismatch:
            mismatches += 1
    assert mismatches == 10_000


def test_a_forged_block_map_costs_little():
    """The largest size that a map may claim is bounded by d: no table of 65536 sizes for 300 coordinates."""
    p = Bernoulli(np.full(300, 0.5))
    body = struct.pack("<2sBBBBHII8sf", b"KL", 1, 1, 1, 1, 0, 300, 100, bytes(8), 1.0) + b"\xff\xff" + bytes(4 + 13)
    with pytest.raises(CorruptMessage, match="does not fit"):
        Codec().decode(body + zlib.crc32(body).to_bytes(4, "little"), p, key=KEY)


@pytest.mark.parametrize("d", [2**32 - 1, 2**31])
def test_a_header_that_claims_much_allocates_little(d):
    """Four billion coordinates on the sender's word: refused before anything of that size exists."""
    message, p, _ = corpus()[0]
    data = bytearray(message)
    data[8:12] = d.to_bytes(4, "little")
    data[12:16] = (d // 2).to_bytes(4, "little")
    data[-4:] = zlib.crc32(data[:-4]).to_bytes(4, "little")

    def attack() -> None:
        with pytest.raises(KLMSError):
            Codec().decode(bytes(data), p, key=KEY)

    attack()
    extra = peak_extra_bytes(attack)
    assert extra is None or extra < 64 << 20  # of four gigabytes and more
