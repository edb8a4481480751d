"""The bench behind `klms bench link`: the link speed above which compression costs more time than it saves.

A round of a federation is run over `klms.Server` and `klms.Client` with normally distributed updates, and its bytes and
the seconds of the codec are measured. The duration of a round at a link speed is computed from these measurements:
every client has a link of its own, and the clients work at the same time, while the server reads their replies one
after the other. Training is not counted: it takes the same time with klms and without.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from klms.benchmarks.rows import shown
from klms.container import Array
from klms.exchange.client import Client
from klms.exchange.server import Server

PARAMETERS = (400_000, 11_000_000, 100_000_000)
SPEEDS = (1.0, 10.0, 100.0, 500.0)
"""Megabits per second."""
_SIDE = 1000  # parameters per row of the model's matrix
_STEP = 0.01  # standard deviation of an update's entries
_ROUNDS = 3  # the first round sends the whole model, and compiles kernels

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """A round of all clients at one link speed."""

    parameters: int = shown("parameters", ",d")
    bits: float = shown("bits", "g")
    """Bits per parameter in each direction."""
    client_bytes: int = shown("bytes per client", ",d")
    """Bytes of both directions."""
    client_seconds: float = shown("s of a client's codec", ".2f")
    server_seconds: float = shown("s of the server's", ".2f")
    """Seconds that the server spends on the replies of all clients and on the step to the next model."""
    speed: float = shown("Mbit/s", "g")
    stock: float = shown("s without", ".2f")
    """Seconds of a round that sends the model in float32 in both directions."""
    coded: float = shown("s with klms", ".2f")
    break_even: float = shown("break-even, Mbit/s", ",.0f")
    """Link speed at which a round takes equally long with klms and without."""


def run(
    *,
    parameters: Sequence[int] = PARAMETERS,
    speeds: Sequence[float] = SPEEDS,
    bits: float = 1.0,
    clients: int = 10,
) -> Iterator[Row]:
    """Yield one row per model size and link speed."""
    for size in parameters:
        cost = measured(size, bits)
        float32_bytes = 2 * 4 * cost.parameters
        server_seconds = clients * cost.receive + cost.step
        seconds = cost.client + server_seconds
        for speed in speeds:
            yield Row(
                parameters=cost.parameters,
                bits=bits,
                client_bytes=cost.nbytes,
                client_seconds=cost.client,
                server_seconds=server_seconds,
                speed=speed,
                stock=_transfer(float32_bytes, speed),
                coded=_transfer(cost.nbytes, speed) + seconds,
                break_even=_transfer(float32_bytes - cost.nbytes, 1.0) / seconds,
            )


@dataclass(frozen=True)
class Cost:
    """Cost of one client in a round, on one thread: processor seconds, and bytes in both directions."""

    parameters: int
    nbytes: int
    client: float
    """Seconds that the client takes to read the request and write the reply."""
    receive: float
    """Seconds that the server takes to read the reply."""
    step: float
    """Seconds that the server takes to code the step to the next model, once for all clients."""


def measured(parameters: int, bits: float) -> Cost:
    """Return the cost of the last of a few rounds with one client."""
    rows = max(1, parameters // _SIDE)
    rng = np.random.default_rng(0)
    server = Server({"weight": _normal(rng, rows)}, bits_per_parameter=bits, seed=0)
    client = Client(seed=0)
    step = 0.0
    for _ in range(_ROUNDS - 1):
        request = server.request("client")
        decoded = server.receive("client", client.reply(_trained(client.receive(request), rng)))
        _, step = _timed(partial(server.step, decoded))
    request = server.request("client")
    model, reading = _timed(partial(client.receive, request))
    trained = _trained(model, rng)
    reply, writing = _timed(partial(client.reply, trained))
    _, receive = _timed(partial(server.receive, "client", reply))
    return Cost(rows * _SIDE, len(request) + len(reply), reading + writing, receive, step)


def _trained(model: dict[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Return the model plus a normally distributed update, which stands in for training."""
    return {name: array + np.float32(_STEP) * _normal(rng, len(array)) for name, array in model.items()}


def _normal(rng: np.random.Generator, rows: int) -> Array:
    return rng.standard_normal((rows, _SIDE), dtype=np.float32)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return the result of the work and its processor seconds. These do not depend on how busy the machine is."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def _transfer(nbytes: int, speed: float) -> float:
    """Return the seconds that `nbytes` bytes take at a speed in megabits per second."""
    return 8 * nbytes / (speed * 1e6)
