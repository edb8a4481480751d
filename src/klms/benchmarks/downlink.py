"""The bench behind `klms bench downlink`: what the downlink adds to a round, at the server and at a client."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from klms.benchmarks.server import method_for
from klms.engine.downlink import Downlink, Relay
from klms.methods.entry import RunSettings
from klms.methods.fedpm import FedPM

WAYS = (("mask-klms", "auto"), ("trellis", "auto"), ("trellis", "coded"), ("trellis", "snapshot"))
"""Schemes of the uplink, and downlinks."""
_ROUNDS = 3


@dataclass(frozen=True)
class Row:
    """One round: seconds at the server, for all clients together, and at each client, and the bits that it receives."""

    scheme: str
    downlink: str
    round: int
    server_seconds: float
    client_seconds: float
    bits_per_parameter: float


def run(*, d: int = 1_000_000, clients: int = 10, rate: float = 1.0) -> Iterator[Row]:
    """Yield one row per way and round; the first of a way also compiles."""
    for scheme, kind in WAYS:
        method, rng = method_for(scheme, d), np.random.default_rng(0)
        settings = RunSettings(method=scheme, clients=clients, downlink=kind)
        if kind == "coded":
            settings = settings.model_copy(update={"down_rate": rate})
        downlink, state = Downlink(method, settings), method.init()
        held = state
        for number in range(1, _ROUNDS + 1):
            opened, relay = downlink.open(state), Relay(state)
            received = method.receive(opened.state)
            for client in range(clients):
                drawn = rng.normal(0, 0.01, d).astype(np.float32)
                if isinstance(method, FedPM):
                    drawn = method.feasible(opened.state.vector("theta") + 5 * drawn)
                key, side = method.key(number, client), opened.state.shared
                message = method.compressor.encode(drawn, side, key=key, rng=rng)
                relay.add(client, message)
                received.add(method.decode(opened.state, client, message), len(message))
            after = method.conclude(opened.state, received)
            start = time.perf_counter()
            state = downlink.close(state, opened, after, range(clients), relay)
            following = downlink.open(state)
            messages = [following.message(client) for client in range(clients)]
            middle = time.perf_counter()
            held = downlink.follow(messages[0], held)
            end = time.perf_counter()
            yield Row(scheme, kind, number, middle - start, end - middle, 8 * len(messages[0]) / d)


def as_json(rows: list[Row]) -> list[dict[str, object]]:
    """Return the rows for machines."""
    return [asdict(row) for row in rows]
