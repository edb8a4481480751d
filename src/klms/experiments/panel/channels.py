"""Channels move models down and updates up in a run, and count the bytes of both directions."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

import numpy as np

from klms.container import Array, Arrays
from klms.exchange.client import Client
from klms.exchange.model import statistics_of
from klms.exchange.server import Server
from klms.numerics.jit import Float64

Train = Callable[[Arrays, int], Arrays]
"""Returns the arrays that a client with this number trains from the model that it holds."""


@dataclass(frozen=True)
class Names:
    """The arrays of a model: those that form one vector, and those that are averaged separately."""

    vector: tuple[str, ...]
    beside: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    parameters: int

    @classmethod
    def of(cls, arrays: Arrays) -> "Names":
        apart = statistics_of(arrays)
        vector = tuple(name for name, array in arrays.items() if array.dtype.kind == "f" and name not in apart)
        beside = tuple(name for name in arrays if name not in vector)
        shapes = tuple(arrays[name].shape for name in vector)
        sizes = tuple(arrays[name].size for name in vector)
        parameters = sum(array.size for array in arrays.values())
        return cls(vector, beside, shapes, sizes, parameters)

    def flat(self, arrays: Arrays) -> Float64:
        return np.concatenate([np.asarray(arrays[name], dtype=np.float64).ravel() for name in self.vector])

    def model(self, vector: Float64, like: Arrays, beside: Arrays) -> dict[str, Array]:
        parts = dict(zip(self.vector, np.split(vector, np.cumsum(self.sizes)[:-1]), strict=True))
        return {
            name: np.asarray(beside[name] if name in beside else parts[name].reshape(array.shape), dtype=array.dtype)
            for name, array in like.items()
        }


class Average(NamedTuple):
    """Average over the clients of a round: their update, and the arrays that are averaged separately."""

    update: Float64
    beside: Arrays

    @classmethod
    def of(cls, names: Names, model: Arrays, trained: Sequence[Arrays], weights: Float64) -> "Average":
        start = names.flat(model)
        update = np.asarray(sum(w * (names.flat(one) - start) for w, one in zip(weights, trained, strict=True)))
        beside = {
            name: np.asarray(sum(w * one[name] for w, one in zip(weights, trained, strict=True)))
            for name in names.beside
        }
        return cls(update, beside)


class Channel(Protocol):
    """A server and its clients, or workers without a server."""

    @property
    def uplink_bytes(self) -> int:
        """Bytes that clients have sent."""

    @property
    def downlink_bytes(self) -> int:
        """Bytes that clients have received."""

    @property
    def model(self) -> Arrays:
        """The model to which updates are added."""

    @property
    def view(self) -> Arrays:
        """The model that clients hold."""

    def average(self, train: Train, weights: Float64) -> Average:
        """Let every client train, and return the average of the decoded results."""

    def step(self, model: Arrays) -> dict[str, float]:
        """Lead all clients to the next model; return the measured quality of the round, if there is one."""


class Uncompressed:
    """A channel that sends models and updates unchanged."""

    def __init__(self, model: Arrays, names: Names, clients: int) -> None:
        self.model = model
        self.uplink_bytes = 0
        self.downlink_bytes = 0
        self._names = names
        self._clients = clients

    @property
    def view(self) -> Arrays:
        return self.model

    def average(self, train: Train, weights: Float64) -> Average:
        trained = [train(self.model, client) for client in range(self._clients)]
        self.downlink_bytes += 4 * self._names.parameters * self._clients
        self.uplink_bytes += 4 * self._names.parameters * self._clients
        return Average.of(self._names, self.model, trained, weights)

    def step(self, model: Arrays) -> dict[str, float]:
        self.model = model
        return {}


class Exchanged:
    """A `klms.Server` and its clients."""

    def __init__(self, server: Server, names: Names, clients: Sequence[Client]) -> None:
        self._server = server
        self._names = names
        self._clients = clients

    @property
    def model(self) -> Arrays:
        return self._server.model

    @property
    def view(self) -> Arrays:
        return self._server.view

    @property
    def uplink_bytes(self) -> int:
        return self._server.uplink_bytes

    @property
    def downlink_bytes(self) -> int:
        return self._server.downlink_bytes

    def average(self, train: Train, weights: Float64) -> Average:
        model = self._server.model
        decoded: list[Arrays] = []
        for n, (client, weight) in enumerate(zip(self._clients, weights, strict=True)):
            trained = train(client.receive(self._server.request(str(n))), n)
            decoded.append(self._server.receive(str(n), client.reply(trained), weight=float(weight)))
        return Average.of(self._names, model, decoded, weights)

    def step(self, model: Arrays) -> dict[str, float]:
        self._server.step(model)
        assert self._server.quality is not None
        return {name: float(f"{value:.4g}") for name, value in asdict(self._server.quality).items()}
