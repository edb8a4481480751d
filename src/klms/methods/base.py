"""The protocol of a method: state in, bytes out, state in again."""

import io
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from klms.codec import SharedKey
from klms.compressors.base import Compressor
from klms.compressors.layout import Layout
from klms.learning.network import Network
from klms.learning.training import Examples

Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class State:
    """Everything that one round hands to the next.

    `shared` goes to the clients, `private` stays with the server. `memories` is what each client keeps to itself, for
    methods that need it; here, since the local engine plays all clients and its checkpoint must hold them.
    """

    round: int
    """Rounds done."""
    shared: Arrays = field(default_factory=dict)
    private: Arrays = field(default_factory=dict)
    memories: Mapping[int, npt.NDArray[np.generic]] = field(default_factory=dict)

    def after(self, shared: Arrays, private: Arrays | None = None) -> Self:
        """The state one round later."""
        return replace(self, round=self.round + 1, shared=shared, private=self.private if private is None else private)

    def remembering(self, uploads: "Sequence[Upload]") -> Self:
        """The state with what the clients of a round now remember."""
        memories = {upload.client: upload.memory for upload in uploads if upload.memory is not None}
        return replace(self, memories={**self.memories, **memories}) if memories else self

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """A shared array of float32."""
        return np.asarray(self.shared[name], dtype=np.float32)

    def kept(self, name: str) -> npt.NDArray[np.float64]:
        """A private array, as numbers to reckon with."""
        return np.asarray(self.private[name], dtype=np.float64)

    def to_bytes(self, *, private: bool) -> bytes:
        """What the clients receive; with `private`, what a checkpoint holds. No pickle."""
        arrays = {f"shared.{name}": array for name, array in self.shared.items()}
        if private:
            arrays |= {f"private.{name}": array for name, array in self.private.items()}
            arrays |= {f"memories.{client}": array for client, array in self.memories.items()}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **{"round": np.array(self.round), **arrays})
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Undo `to_bytes`."""
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            groups: dict[str, dict[str, npt.NDArray[np.generic]]] = {"shared": {}, "private": {}, "memories": {}}
            for name in stored.files:
                group, _, rest = name.partition(".")
                if rest:
                    groups[group][rest] = stored[name]
            memories = {int(client): array for client, array in groups["memories"].items()}
            return cls(int(stored["round"]), groups["shared"], groups["private"], memories)


@dataclass(frozen=True)
class Upload:
    """What a client sends, and what it took."""

    client: int
    message: bytes
    seconds: Mapping[str, float]
    memory: npt.NDArray[np.float32] | None = None
    """What the client keeps for its next turn. It is not sent."""
    facts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What only the client can know and a ledger wants: not sent, averaged over the round's clients."""


@dataclass(frozen=True)
class Outcome:
    """The state after a round, and what the server saw in it."""

    state: State
    facts: Mapping[str, float]
    """Numbers for the ledger: KL, blocks and the like. The same whatever the machine."""


Received = npt.NDArray[Any]
"""What was read in a message: an update, or a mask."""
Decoder = Callable[[Upload], Received]


@dataclass(frozen=True)
class Method(ABC):
    """Settings and architecture. It holds nothing that changes."""

    network: Network
    seed: int
    clients: int
    per_round: int

    @property
    def layout(self) -> Layout:
        """How the parameters lie in their vector."""
        return self.network.layout

    def key(self, round_: int, client: int) -> SharedKey:
        """The shared key of a client's message in a round (rounds count from 1)."""
        return SharedKey(self.seed, round_, client)

    def private_rng(self, round_: int, client: int) -> np.random.Generator:
        """A client's own randomness. Reproducible runs need it seeded; a deployment passes entropy instead."""
        return np.random.default_rng([self.seed, 0xC11E47, round_, client])

    def reads(self, compressor: Compressor, state: State) -> Decoder:
        """The decoder of a round whose messages `compressor` made."""
        number = state.round + 1
        return lambda upload: compressor.decode(upload.message, state.shared, key=self.key(number, upload.client))

    @abstractmethod
    def init(self) -> State:
        """The state before round 1."""

    @abstractmethod
    def client_update(self, state: State, client: int, data: Examples, rng: np.random.Generator) -> Upload:
        """Train on `data`, and encode. `state` is as the client holds it: shared, and its own memory."""

    @abstractmethod
    def decoder(self, state: State) -> Decoder:
        """What reads the messages of a round; it raises a `KLMSError` on bytes that are none of this round's."""

    @abstractmethod
    def aggregate(self, state: State, uploads: Sequence[Upload], vectors: Sequence[Received]) -> Outcome:
        """The next state, from the uploads of a round and what was read in them."""

    def server_update(self, state: State, uploads: Sequence[Upload]) -> Outcome:
        """Decode, and aggregate."""
        decode = self.decoder(state)
        return self.aggregate(state, uploads, [decode(upload) for upload in uploads])

    @abstractmethod
    def evaluate(self, state: State, data: Examples) -> tuple[dict[str, float], State]:
        """Metrics on test data; a method that averages over rounds keeps the average in its private state."""


class Stopwatch:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time of a `with` block to a phase."""
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


def json_line(record: Mapping[str, object]) -> str:
    """One line of JSON, the same for the same record."""
    return json.dumps(record, sort_keys=True, allow_nan=False)
