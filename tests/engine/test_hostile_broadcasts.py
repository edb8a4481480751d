"""Broadcasts that are damaged, forged or made to exhaust memory are refused with an error of klms."""

import struct
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest

from klms.container import describe, write_arrays
from klms.engine.downlink import Downlink
from klms.errors import CorruptMessage, KLMSError, OutOfSync, UnsupportedMessage
from klms.exchange.broadcast import Broadcast
from klms.frame import Kind
from tests.support.downlink_runs import config_of, federation_of, trained


def sealed(kind, base, number, digest, body, version=1):
    message = struct.pack("<2sBBII8s", b"KX", version, kind, base, number, digest) + body
    return message + struct.pack("<I", zlib.crc32(message))


@pytest.fixture(scope="module")
def small():
    """A downlink of a tiny model, a state that a client holds, and messages that lead on from it."""
    config = config_of("fedpm-klms", rounds=4, downlink="coded")
    federation = federation_of(config, hidden=12)
    states = [federation.method.init(), *(result.state for result in trained(config, federation))]
    coded = Downlink(federation.method, config)
    relayed = config_of("fedpm-klms", rounds=4)
    auto = Downlink(federation.method, relayed)
    own = [federation.method.init(), *(result.state for result in trained(relayed, federation))]
    return {
        "coded": (coded, coded.open(states[1]).state, coded.open(states[3]).sender, 1),
        "auto": (auto, auto.open(own[1]).state, auto.open(own[3]).sender, 1),
    }


@pytest.mark.parametrize("mode", ["auto", "coded"])
def test_every_truncation_and_every_flipped_bit_is_noticed(small, mode):
    downlink, held, sender, known = small[mode]
    steps = Broadcast(3, sender.digest, known, sender.trail.since(known) or (b"", b"")).to_bytes()
    for message in (steps, sender.message(None)):
        for end in range(len(message)):
            with pytest.raises(KLMSError):
                Broadcast.from_bytes(message[:end])
        with pytest.raises(CorruptMessage):
            Broadcast.from_bytes(message + b"\0")
        rng = np.random.default_rng(0)
        for place in [*range(24), *rng.integers(24, len(message), 300).tolist()]:
            damaged = bytearray(message)
            damaged[place] ^= 1 << int(rng.integers(8))
            with pytest.raises(KLMSError):
                downlink.follow(bytes(damaged), held)
            damaged[-4:] = struct.pack("<I", zlib.crc32(damaged[:-4]))  # with the checksum put right
            try:
                reached = downlink.follow(bytes(damaged), held)
            except KLMSError:
                continue
            assert downlink.digest(reached) == sender.digest


def test_forged_heads_are_refused(small):
    downlink, held, sender, _ = small["auto"]
    (first, second) = sender.trail.since(1) or (b"", b"")
    body = struct.pack("<I", len(first)) + first + struct.pack("<I", len(second)) + second
    snapshot = Broadcast.from_bytes(sender.message(None)).snapshot
    digest = sender.digest
    with pytest.raises(UnsupportedMessage, match="version 3"):
        downlink.follow(sealed(Kind.STEPS, 1, 3, digest, body, version=3), held)
    forged = [
        sealed(255, 1, 1, digest, b""),
        sealed(Kind.METHOD, 1, 3, digest, body),
        sealed(Kind.REPLY, 1, 3, digest, body),
        sealed(Kind.STEPS, 1, 4, digest, body),
        sealed(Kind.STEPS, 1, 2, digest, body),
        sealed(Kind.STEPS, 3, 1, digest, body),
        sealed(Kind.STEPS, 3, 1, digest, b""),
        sealed(Kind.STEPS, 0, 2**32 - 1, digest, body),
        sealed(Kind.STEPS, 0, 2**32 - 1, digest, b""),
        sealed(Kind.STEPS, 1, 2, digest, struct.pack("<I", 2**32 - 1) + first),
        sealed(Kind.STEPS, 1, 2, digest, b"\0"),
        sealed(Kind.STEPS, 1, 3, digest, body[:-1]),
        sealed(Kind.STEPS, 1, 3, digest, body + b"\0\0\0\0"),
        sealed(Kind.SNAPSHOT, 1, 3, digest, b""),
        sealed(Kind.SNAPSHOT, 1, 3, digest, body),
        sealed(Kind.JUMP, 1, 4, digest, body),  # from another state than the anchor
        sealed(Kind.JUMP, 0, 2, digest, body),  # as many steps as states: none of them jumps
        sealed(Kind.JUMP, 0, 1, digest, body),
        sealed(Kind.JUMP, 0, 3, digest, b""),
        sealed(Kind.JUMP, 0, 2**32 - 1, digest, body[:-1]),
        b"", b"KX", b"KD" + bytes(40),
    ]  # fmt: skip
    for message in forged:
        with pytest.raises((CorruptMessage, UnsupportedMessage)):
            downlink.follow(message, held)
    for base, number in [(0, 2), (2, 4), (7, 9)]:  # sound, but steps by other numbers
        with pytest.raises(OutOfSync):
            downlink.follow(sealed(Kind.STEPS, base, number, digest, body), held)
    for number in (2, 4):  # by another number, a snapshot would be trained on with other keys
        with pytest.raises(OutOfSync):
            downlink.follow(sealed(Kind.SNAPSHOT, 3, number, digest, snapshot), held)
    for number in (3, 2**32 - 1):  # what a jump claims to lead to
        with pytest.raises(OutOfSync):
            downlink.follow(sealed(Kind.JUMP, 0, number, digest, body), held)
    many = sealed(Kind.STEPS, 1, 20_001, digest, bytes(4) * 20_000)
    with pytest.raises(OutOfSync):
        downlink.follow(many, held)


def test_forged_relayed_messages_are_refused(small):
    downlink, held, sender, _ = small["auto"]
    honest = sender.digest
    for step in (b"1234567", struct.pack("<II", 0, 100) + b"short", struct.pack("<II", 2**32 - 1, 2**32 - 1), bytes(8)):
        with pytest.raises(KLMSError):
            downlink.follow(Broadcast(2, honest, 1, (step,)).to_bytes(), held)


def peak_of(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bomb_snapshots(state):
    """Snapshots of a few hundred kilobytes at most that unpack to far more, or to what no model has."""
    theta = state.shared["theta"]
    side = {f"shared.{name}": array for name, array in state.shared.items() if name != "theta"}
    whole = {**side, "shared.theta": theta}
    zeros = np.zeros(30_000_000, dtype=np.float32)
    yield write_arrays({**side, "shared.theta": zeros}, packed=True)
    yield write_arrays({**side, "shared.theta": zeros.astype(np.int8)}, packed=True)
    yield write_arrays({**whole, **{f"shared.theta{n}": zeros[:500_000] for n in range(60)}}, packed=True)
    yield write_arrays({**whole, "private.more": zeros}, packed=True)
    lying = describe({**side, "shared.theta": theta}, None, [array.nbytes for array in side.values()] + [1000])
    rest = b"".join(array.tobytes() for array in side.values())
    deflated = zlib.compress(bytes(30_000_000), wbits=-15)
    yield lying + rest + (struct.pack("<H", 0) + deflated)[:1000].ljust(1000)
    yield lying + rest + (struct.pack("<H", 1) + bytes(4) + deflated)[:1000].ljust(1000)
    for odd in (theta[:-1], theta.astype(np.float64), theta.reshape(1, -1), theta.astype(np.int32)):
        yield write_arrays({**side, "shared.theta": odd}, packed=True)
    yield write_arrays(side)  # no theta
    yield write_arrays({"shared.theta": theta})  # no block map
    yield write_arrays({**whole, "clients.0.residual": theta})
    yield write_arrays({**whole, "theta": theta})
    yield write_arrays(whole)[:-1]
    yield b""
    yield b"\x93NUMPY" + write_arrays(whole)


def test_snapshots_that_unpack_to_more_or_to_something_else_are_refused_in_little_memory(small):
    downlink, held, sender, _ = small["auto"]
    for number, snapshot in enumerate(bomb_snapshots(held)):
        message = sealed(Kind.SNAPSHOT, 3, 3, sender.digest, snapshot)

        def follow(message=message):
            with pytest.raises((CorruptMessage, UnsupportedMessage, OutOfSync)):
                downlink.follow(message, held)

        assert peak_of(follow) < 10e6, number


def test_side_information_that_unpacks_to_more_is_refused_in_little_memory(small):
    downlink, held, sender, _ = small["coded"]
    step = (sender.trail.since(2) or (b"",))[0]
    (length,) = struct.unpack_from("<I", step)
    coded = step[4 + length :]
    held = replace(held, round=2)
    bomb = write_arrays({"block_bounds": np.zeros(30_000_000, dtype=np.uint8)}, packed=True)
    alien = write_arrays({"alien": np.zeros(3)}, packed=True)
    more = write_arrays({"block_bounds": np.arange(3)}, packed=True) + b"more"
    for side in (bomb, alien, more, b"\0", alien[:-2], bytes(50)):
        forged = struct.pack("<I", len(side)) + side + coded
        message = Broadcast(3, sender.digest, 2, (forged,)).to_bytes()

        def follow(message=message):
            with pytest.raises(KLMSError):
                downlink.follow(message, held)

        assert peak_of(follow) < 10e6
    for forged in (b"", b"\0\0", struct.pack("<I", 2**32 - 1) + coded, struct.pack("<I", 5) + coded, coded[:9]):
        with pytest.raises(KLMSError):
            downlink.follow(Broadcast(3, sender.digest, 2, (forged,)).to_bytes(), held)
