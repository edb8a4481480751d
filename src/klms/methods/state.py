"""The state of a run between two rounds, and its bytes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from klms.compressors.base import Vector
from klms.compressors.trellis import MAX_RATE, MIN_RATE
from klms.container import Array, Arrays, grouped, joined, read_arrays, write_arrays
from klms.errors import CorruptMessage
from klms.exchange.held import Held
from klms.exchange.quality import FIRST_ROUND, Knowledge

RATE = "rate"
"""Name of the shared array that holds the bits per parameter of the next updates, if the server chooses them."""


@dataclass(frozen=True)
class Sound:
    """The arrays of the last model whose loss was sound. The server returns to this model if the loss explodes."""

    loss: float
    shared: Arrays
    private: Arrays


@dataclass(frozen=True)
class Learned:
    """What the server has learned about rates, in a run with a constant quality (`exchange/quality.py`)."""

    known: Knowledge = field(default_factory=Knowledge)
    down: float = FIRST_ROUND
    """Bits per parameter of the next coded step."""

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        down = kept["down"]
        if not isinstance(down, float) or not MIN_RATE <= down <= MAX_RATE:
            raise CorruptMessage(f"the next coded step cannot have {down!r} bits per parameter")
        return cls(Knowledge.from_json(kept["known"]), down)


@dataclass(frozen=True)
class State:
    """Everything that one round hands to the next.

    `shared` goes to the clients, and `private` stays with the server. `clients` are the arrays that each client keeps
    for itself, such as the residual of error feedback. They are part of the state because the local engine simulates
    all clients.
    """

    round: int
    """Number of completed rounds."""
    shared: Arrays = field(default_factory=dict)
    private: Arrays = field(default_factory=dict)
    clients: Mapping[int, Arrays] = field(default_factory=dict)
    held: Held[Arrays | None] = field(default_factory=lambda: Held(None))
    """The state that clients hold: the shared arrays that coded steps lead to; None if clients hold `shared`."""
    sound: Sound | None = None
    learned: Learned | None = None
    """None if the settings fix the rates."""
    last_step: Vector = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    """The server's last step, kept if rates depend on the measured gain of steps; empty otherwise, or if unknown."""

    def after(self, shared: Arrays, private: Arrays | None = None) -> Self:
        return replace(self, round=self.round + 1, shared=shared, private=self.private if private is None else private)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        return np.asarray(self.shared[name], dtype=np.float32)

    @property
    def rate(self) -> float:
        """Bits per parameter of the next updates, if the server chooses them."""
        return float(self.shared[RATE][0])

    def kept(self, name: str) -> npt.NDArray[np.float64]:
        """Return a private array as float64, for further sums."""
        return np.asarray(self.private[name], dtype=np.float64)

    def to_bytes(self) -> bytes:
        """Return the state as bytes, for a checkpoint or for a client to keep."""
        groups = {
            "shared": self.shared,
            "private": self.private,
            "clients": joined({str(client): arrays for client, arrays in self.clients.items()}),
            "held": self.held.to_arrays(),
            "view": self.held.state or {},
            "own": self.held.own or {},
            "sound_shared": self.sound.shared if self.sound else {},
            "sound_private": self.sound.private if self.sound else {},
            "last": {"step": self.last_step} if self.last_step.size else {},
        }
        meta: dict[str, Any] = {"round": self.round, "loss": self.sound.loss if self.sound else None}
        if self.learned is not None:
            meta["learned"] = asdict(self.learned)
        return write_arrays(joined(groups), meta)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Undo `to_bytes`; raise a `KLMSError` if the bytes are not a state."""
        arrays, meta = read_arrays(data)
        # Copies are aligned and can be written to, like the arrays of a run that was never stored.
        arrays = {name: array.copy() for name, array in arrays.items()}
        names = ("shared", "private", "clients", "held", "view", "own", "sound_shared", "sound_private", "last")
        groups = grouped(arrays, names)
        try:
            number, loss = meta["round"], meta["loss"]
            numbers = dict.fromkeys(name.partition(".")[0] for name in groups["clients"])  # in order, unlike a set
            clients = {int(client): arrays for client, arrays in grouped(groups["clients"], numbers).items()}
            sound = None if loss is None else Sound(float(loss), groups["sound_shared"], groups["sound_private"])
            learned = Learned.from_json(meta["learned"]) if "learned" in meta else None
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptMessage(f"the bytes are not a state: {error!r}") from error
        if type(number) is not int or number < 0:
            raise CorruptMessage(f"the bytes are not a state: round {number!r}")
        held: Held[Arrays | None] = Held.from_arrays(groups["held"], groups["view"] or None, groups["own"] or None)
        last_step = np.asarray(groups["last"].get("step", []), dtype=np.float32)
        return cls(number, groups["shared"], groups["private"], clients, held, sound, learned, last_step)


def rate_array(rate: float) -> Array:
    """Return the bits per parameter of updates as the shared array that announces them to clients."""
    return np.array([rate], dtype=np.float32)
