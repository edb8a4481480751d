"""The bench behind `klms bench downlink`: time at the server and at a client, and the downlink's bits per parameter."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from klms.benchmarks.rows import shown
from klms.benchmarks.server import method_for
from klms.engine.downlink import Downlink, Relay
from klms.methods.entry import RunSettings
from klms.methods.fedpm import FedPM

WAYS = (("mask-klms", "auto"), ("trellis", "auto"), ("trellis", "coded"), ("trellis", "snapshot"))
"""Pairs that are measured: the scheme of the uplink, and the kind of downlink."""
_ROUNDS = 3


@dataclass(frozen=True)
class Row:
    """One round: the server's seconds for all clients together, and the seconds and received bits of each client."""

    scheme: str = shown("uplink")
    downlink: str = shown("downlink")
    round: int = shown("round", "d")
    server_seconds: float = shown("s at the server", ".3f")
    client_seconds: float = shown("s at a client", ".3f")
    bits_per_parameter: float = shown("bits/parameter down", ".3f")


def run(*, d: int = 1_000_000, clients: int = 10, rate: float = 1.0) -> Iterator[Row]:
    """Yield one row per round of each pair in `WAYS`; the first round of a pair also compiles kernels."""
    for scheme, kind in WAYS:
        method = method_for(scheme, d)
        rng = np.random.default_rng(0)
        down_rate = {"down_rate": rate} if kind == "coded" else {}
        downlink = Downlink(method, RunSettings(method=scheme, clients=clients, downlink=kind, **down_rate))
        state = held = method.init()
        for number in range(1, _ROUNDS + 1):
            opened = downlink.open(state)
            relay = Relay(state)
            received = method.receive(opened.state)
            for client in range(clients):
                drawn = rng.normal(0, 0.01, d).astype(np.float32)
                if isinstance(method, FedPM):
                    drawn = method.feasible(opened.state.vector("theta") + 5 * drawn)
                key = method.key(number, client)
                message = method.compressor.encode(drawn, opened.state.shared, key=key, rng=rng)
                relay.add(client, message)
                received.add(method.decode(opened.state, client, message), len(message))
            after = method.conclude(opened.state, received)
            start = time.perf_counter()
            state = downlink.close(state, opened, after, dict.fromkeys(range(clients), opened.held.number), relay)
            following = downlink.open(state)
            messages = [following.message(client) for client in range(clients)]
            middle = time.perf_counter()
            held = downlink.follow(messages[0], held)
            end = time.perf_counter()
            yield Row(scheme, kind, number, middle - start, end - middle, 8 * len(messages[0]) / d)
