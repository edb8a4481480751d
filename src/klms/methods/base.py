"""The protocol of a method: from a state to the messages of clients, and from the messages to the next state."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from klms.codec import Decoded, MessageInfo, SharedKey
from klms.compressors.base import LARGEST_ENTRY, Compressor, Side, SideLearner, Vector, largest_entry
from klms.compressors.layout import Layout
from klms.compressors.with_norm import DecodedWithNorm
from klms.container import Array, Arrays
from klms.exchange.rate_control import Energies
from klms.exchange.robust import Robust
from klms.learning.examples import Examples
from klms.methods.state import State
from klms.numerics.jit import Float32

if TYPE_CHECKING:
    from torch import Tensor

    from klms.learning.learner import Learner


Measurements = dict[str, float | Sequence[float]]
"""Numbers that only a client can measure; the ledger records their averages. They are not part of the message."""


@dataclass(frozen=True)
class Upload:
    """A client's message, with everything else that the engine needs."""

    client: int
    message: bytes
    seconds: Mapping[str, float]
    measurements: Measurements = field(default_factory=dict)
    keeps: Arrays = field(default_factory=dict)
    """Arrays that the client keeps for itself until its next round. They are not sent."""
    based_on: State | None = None
    """State from which the client trained; None for the state of the round in which the message arrives."""


@dataclass(frozen=True)
class Outcome:
    """The state after a round, and numbers for the ledger that do not depend on the machine."""

    state: State
    metrics: Mapping[str, float]
    undone: bool = False
    """Whether the result of the round was discarded, so that the model of the round before is kept."""


class Received:
    """Running sums over the messages of a round. Their memory does not grow with the number of clients.

    With `robust`, all updates are kept until their robust average is computed. A robust average ignores weights.
    """

    def __init__(self, d: int, learner: SideLearner, robust: Robust | None = None) -> None:
        self.total = np.zeros(d)
        self.count = 0
        self.weight = 0.0
        """Sum of the weights of all updates."""
        self.energies = Energies()
        """Estimate of the noise in the mean, if messages carry the norms of their updates."""
        self.clipped = 0
        self.keeps_mean = False
        """Whether `take_mean` keeps the mean as `mean`, for use after `aggregate`."""
        self.mean: Vector | None = None
        self._robust = robust
        self._updates: list[Float32] = []
        self._learner = learner
        self._bits = 0.0
        self._first: MessageInfo | None = None
        self._headers = 0
        self._header_sums = np.zeros(5)

    def add(self, decoded: Decoded, message_bytes: int, weight: float = 1.0) -> None:
        if self._robust is None:
            vector = decoded.vector if weight == 1.0 else weight * decoded.vector
            np.add(self.total, vector, out=self.total)
        else:
            self._updates.append(np.asarray(decoded.vector, dtype=np.float32))
        self.count += 1
        self.weight += weight
        if isinstance(decoded, DecodedWithNorm):
            update = np.asarray(decoded.vector, dtype=np.float32)
            counted = weight if self._robust is None else 1.0
            self.energies.add(update, decoded.norm, counted, 8 * message_bytes / self.total.size)
        self._learner.add(decoded)
        self._bits += 8 * message_bytes / self.total.size
        if (header := decoded.header) is not None:
            self._first = self._first or header
            self._headers += 1
            bits = np.array([header.mean_kl * header.blocks, 8 * header.index_bytes, 8 * header.block_size_bytes])
            self._header_sums += [*bits / self.total.size, header.mean_kl, header.blocks]

    def take_mean(self) -> npt.NDArray[np.float64]:
        """Return the mean of the decoded vectors, which overwrites their sum, or their robust average."""
        if self._robust is None:
            mean = np.divide(self.total, self.weight, out=self.total)
        else:
            average = self._robust.average(self._updates)
            self.clipped = average.clipped
            mean = average.vector
        if self.keeps_mean:
            self.mean = mean.astype(np.float32)
        return mean

    def side(self) -> Side:
        return self._learner.finish()

    def statistics(self) -> dict[str, float]:
        """Return statistics of the messages, averaged over clients, by the names of the ledger's fields."""
        found = {"bits_per_parameter": self._bits / self.count}
        if self.clipped:
            found["clipped"] = float(self.clipped)
        if self._first is None:  # only messages of the codec have KL and blocks
            return found
        kl, index_bits, block_size_bits, block_kl, blocks = (self._header_sums / self._headers).tolist()
        if block_kl:  # messages of DP-REC do not report their KL
            found |= {"kl_bits_per_parameter": kl, "block_kl_bits": block_kl}
        return found | {
            "blocks": blocks,
            "index_bits_per_parameter": index_bits,
            "block_size_bits_per_parameter": block_size_bits,
            "update_round": float(self._first.carries_blocks),
        }


@dataclass(frozen=True)
class Method(ABC):
    """A federated-learning algorithm: its settings, architecture and compressor. It has no mutable state."""

    learner: "Learner"
    seed: int
    clients: int
    compressor: Compressor
    robust: Robust | None = field(default=None, kw_only=True)
    """How updates are averaged if some clients may be hostile."""
    error_feedback: bool = field(default=False, kw_only=True)
    """Whether clients add the residual to their next update."""

    vector_name: ClassVar[str | None] = "weights"
    """Name of the shared array that a coded downlink codes; None if unsupported."""
    noisy_steps: ClassVar[bool] = False
    """Whether steps of the array `vector_name` are mostly sampling noise, so that coding should not add more noise."""
    server_only: ClassVar[frozenset[str]] = frozenset()
    """Private arrays that `aggregate` does not need, so that no client needs them either."""

    @property
    def layout(self) -> Layout:
        return self.learner.layout

    def key(self, round_: int, client: int) -> SharedKey:
        """Return the shared key of a client's message in a round (rounds count from 1)."""
        return SharedKey(self.seed, round_, client)

    def private_rng(self, round_: int, client: int) -> np.random.Generator:
        """Return the private randomness of a client in a seeded run; anybody with the seed can reproduce it."""
        return np.random.default_rng([self.seed, 0xC11E47, round_, client])

    def penalty(self, parameters: "Tensor", start: "Tensor") -> "Tensor | float":
        """Return a term to add to the local loss, 0 by default, given the trained variables and their initial values.

        The variables are the parameters or, for methods that train masks, the scores (the logits of `theta`).
        """
        return 0.0

    def loss_seen(self, loss: float) -> Measurements:
        """Return the mean loss of a client's local training as a measurement; empty if the loss is not finite."""
        return {"train_loss": loss} if math.isfinite(loss) else {}

    def compressor_after(self, state: State) -> Compressor:
        """Return the compressor of the messages of the round after `state`; the same one in all rounds by default."""
        return self.compressor

    def decode(self, state: State, client: int, message: bytes) -> Decoded:
        """Read a client's message of the round after `state`; raise a `KLMSError` on any other bytes."""
        key = self.key(state.round + 1, client)
        return self.compressor_after(state).decode(message, state.shared, key=key)

    def weight(self, staleness: int) -> float:
        """Return the weight of an update that was trained from the state of `staleness` rounds ago."""
        return 1.0

    def receive(self, state: State) -> Received:
        """Return empty sums for the round after `state`; a method that needs all updates at once overrides this."""
        learner = self.compressor_after(state).learner(state.shared)
        return Received(self.layout.d, learner, self.robust)

    def init(self) -> State:
        """Return the state before round 1; by default it holds the model's initial weights."""
        return State(0, {"weights": self.learner.network.initial(self.seed), **self.compressor.start()})

    @abstractmethod
    def train(self, state: State, client: int, data: Examples, rng: np.random.Generator) -> tuple[Vector, Measurements]:
        """Return the vector that a client has to send after training on `data`; `state` has only the shared arrays."""

    def personal(self, state: State, keeps: Arrays) -> State:
        """Return the state from which a client trains, given the arrays that it keeps, such as its own layers."""
        return state

    def to_send(self, start: State, update: Vector, keeps: dict[str, Array]) -> Vector:
        """Return the part of an update that a client sends after training from `start`; put the rest into `keeps`."""
        return update

    def client_update(
        self,
        state: State,
        client: int,
        data: Examples,
        rng: np.random.Generator,
        keeps: Arrays | None = None,
    ) -> Upload:
        """Train on `data` and encode the update, given the arrays that the client kept after its last round.

        With error feedback, the residual is among them, and is added to the update.
        """
        clock, number, kept = Stopwatch(), state.round + 1, dict(keeps or {})
        with clock("train"):
            start = self.personal(state, kept)
            update, measurements = self.train(start, client, data, rng)
            update = self.to_send(start, update, kept)
        with clock("encode"):
            compressor, key = self.compressor_after(state), self.key(number, client)
            if self.error_feedback and "residual" in kept:
                update = update + kept["residual"].astype(np.float32, copy=False)
            message = compressor.encode(update, state.shared, key=key, rng=rng)
            if self.error_feedback:
                kept["residual"] = update - compressor.decode(message, state.shared, key=key).vector
        return Upload(client, message, clock.seconds, measurements, kept)

    def conclude(self, state: State, received: Received) -> Outcome:
        """Return the outcome of `aggregate`, or the state before the round if the outcome is not finite.

        All parties that read the same messages reach the same outcome.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            outcome = self.aggregate(state, received)
        floats = [array for array in outcome.state.shared.values() if array.dtype.kind == "f"]
        if all(largest_entry(array) <= LARGEST_ENTRY for array in floats):
            return outcome
        return Outcome(state.after(state.shared), {**received.statistics(), "undone": 1.0}, undone=True)

    @abstractmethod
    def aggregate(self, state: State, received: Received) -> Outcome:
        """Return the next state, given the sums over the messages of a round."""

    def feasible(self, vector: Vector) -> Vector:
        """Return a decoded vector with its entries in the range that the method allows."""
        return vector

    def parameters(self, state: State) -> npt.NDArray[np.float32]:
        """Return the parameters of the model that belongs to the state."""
        return state.vector("weights")

    def evaluate(self, state: State, data: Examples) -> tuple[dict[str, float], State]:
        """Return metrics on test data, and the state.

        A method that averages over rounds keeps the average in the state.
        """
        return self.learner.metrics(self.learner.predict(self.parameters(state), data), data), state


class Stopwatch:
    """Measures seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
