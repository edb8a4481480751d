"""Server and clients in one process: clients take a step towards a target, and keep their state between rounds."""

from collections.abc import Iterable

import numpy as np

from klms.errors import OutOfSync
from klms.exchange.client import Client
from klms.exchange.server import Server

SHAPES = {"weight": (120, 90), "bias": (90,), "scale": (90,), "steps": (1,)}
_RNG = np.random.default_rng(1)
TARGET = {name: _RNG.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items() if name != "steps"}
TARGET["scale"] = np.abs(TARGET["scale"])
D = sum(int(np.prod(shape)) for shape in SHAPES.values())


def model() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    arrays = {name: (0.1 * rng.standard_normal(SHAPES[name])).astype(np.float32) for name in ("weight", "bias")}
    return {**arrays, "scale": np.ones(90, np.float32), "steps": np.zeros(1, np.int64)}


def trained(received: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    new = {name: (a + 0.3 * (TARGET[name] - a)).astype(a.dtype) for name, a in received.items() if name in TARGET}
    return {**new, "steps": received["steps"] + 1}


def distance(arrays: dict[str, np.ndarray]) -> float:
    off = sum(float(np.sum((arrays[name] - target) ** 2)) for name, target in TARGET.items())
    return off / sum(float(np.sum(target**2)) for target in TARGET.values())


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


class Fleet:
    """Clients by name, with the state that each keeps."""

    def __init__(self, noise: float = 0.0, **arguments: object) -> None:
        self.rng = np.random.default_rng(3)
        self.noise = noise
        self.states: dict[str, bytes] = {}
        self.arguments = arguments
        self.resyncs = 0

    def answer(self, server: Server, name: str, request: bytes) -> tuple[dict[str, np.ndarray], bytes]:
        """Return the model that a client receives, and its reply."""
        client = Client(self.states.get(name, b""), **self.arguments)
        try:
            received = client.receive(request)
        except OutOfSync as lost:
            self.resyncs += 1
            try:
                server.receive(name, lost.reply)
            except OutOfSync:
                received = client.receive(server.request(name))
        answer = trained(received)
        answer["weight"] += self.noise * self.rng.standard_normal(SHAPES["weight"], dtype=np.float32)
        reply = client.reply(answer)
        self.states[name] = client.state
        return received, reply

    def round(self, server: Server, names: Iterable[str]) -> list[dict[str, np.ndarray]]:
        """Run a round, check that all clients start from the server's model, and return what was decoded."""
        decoded = []
        for name in names:
            received, reply = self.answer(server, name, server.request(name))
            assert same(received, server.view)
            decoded.append(server.receive(name, reply))
        mean = {key: np.mean([arrays[key] for arrays in decoded], axis=0) for key in decoded[0]}
        server.step({key: array.astype(server.model[key].dtype) for key, array in mean.items()})
        return decoded
