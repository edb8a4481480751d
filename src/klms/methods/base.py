"""The protocol of a method: state in, bytes out, state in again."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from klms.codec import Decoded, SharedKey
from klms.compressors.base import Compressor, Side
from klms.compressors.base import Learner as SideLearner
from klms.compressors.layout import Layout
from klms.learning.examples import Examples
from klms.methods.state import State
from klms.methods.statistics import MessageStatistics

if TYPE_CHECKING:
    from torch import Tensor

    from klms.learning.learner import Learner


@dataclass(frozen=True)
class Upload:
    """What a client sends, and what it took."""

    client: int
    message: bytes
    seconds: Mapping[str, float]
    memory: npt.NDArray[np.float32] | None = None
    """What the client keeps for its next turn. It is not sent."""
    measurements: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What only the client can measure and the ledger records, averaged over clients. It is not part of the message."""


@dataclass(frozen=True)
class Outcome:
    """The state after a round, and what the server measured in it."""

    state: State
    metrics: Mapping[str, float]
    """Numbers for the ledger: bits, KL, blocks. They do not depend on the machine."""


class Received:
    """What the messages of a round add up to: running sums, whose memory does not grow with the number of clients."""

    def __init__(self, d: int, learner: SideLearner) -> None:
        self.total = np.zeros(d)
        self.count = 0
        self._learner = learner
        self._statistics = MessageStatistics(d)

    def add(self, decoded: Decoded, message_bytes: int) -> None:
        """Take in one decoded message."""
        np.add(self.total, decoded.vector, out=self.total)
        self.count += 1
        self._learner.add(decoded)
        self._statistics.add(decoded, message_bytes)

    def take_mean(self) -> npt.NDArray[np.float64]:
        """Turn the sum into the mean of the decoded vectors, in place, and return it."""
        return np.divide(self.total, self.count, out=self.total)

    def side(self) -> Side:
        """Return the side information of the next round."""
        return self._learner.finish()

    def statistics(self) -> dict[str, float]:
        """Return what the messages say of themselves, averaged over clients."""
        return self._statistics.means()


@dataclass(frozen=True)
class Method(ABC):
    """Settings, architecture and compressor. It holds nothing that changes."""

    learner: "Learner"
    seed: int
    clients: int
    compressor: Compressor

    @property
    def layout(self) -> Layout:
        """Layout of the parameters in their vector."""
        return self.learner.layout

    def key(self, round_: int, client: int) -> SharedKey:
        """Return the shared key of a client's message in a round (rounds count from 1)."""
        return SharedKey(self.seed, round_, client)

    def private_rng(self, round_: int, client: int) -> np.random.Generator:
        """Return a client's private randomness, seeded so that a simulated run is reproducible."""
        return np.random.default_rng([self.seed, 0xC11E47, round_, client])

    def penalty(self, parameters: "Tensor", start: "Tensor") -> "Tensor | float":
        """Return a term to add to the local loss, given the parameters and where they started; 0 by default."""
        return 0.0

    def compressor_in(self, round_: int) -> Compressor:
        """Return the compressor of a round's messages; the same one in every round by default."""
        return self.compressor

    def decode(self, state: State, client: int, message: bytes) -> Decoded:
        """Read a client's message of the round after `state`; raise a `KLMSError` on any other bytes."""
        number = state.round + 1
        return self.compressor_in(number).decode(message, state.shared, key=self.key(number, client))

    def receive(self, state: State) -> Received:
        """Return the sums that the messages of the round after `state` are added to.

        A method that needs all updates at once, such as a median, returns a subclass that keeps them.
        """
        return Received(self.layout.d, self.compressor_in(state.round + 1).learner(state.shared))

    @abstractmethod
    def init(self) -> State:
        """Return the state before round 1."""

    @abstractmethod
    def client_update(self, state: State, client: int, data: Examples, rng: np.random.Generator) -> Upload:
        """Train on `data` and encode. `state` is as the client holds it: shared arrays and its own memory."""

    @abstractmethod
    def aggregate(self, state: State, received: Received) -> Outcome:
        """Return the next state, from what the messages of a round add up to."""

    @abstractmethod
    def parameters(self, state: State) -> npt.NDArray[np.float32]:
        """Return the parameters of the model that the state stands for."""

    def evaluate(self, state: State, data: Examples) -> tuple[dict[str, float], State]:
        """Return metrics on test data, and the state; a method that averages over rounds keeps the average in it."""
        return self.learner.metrics(self.learner.predict(self.parameters(state), data), data), state


class Stopwatch:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the duration of a `with` block to a phase."""
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
