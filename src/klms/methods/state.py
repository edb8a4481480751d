"""The state of a run between two rounds, and its bytes."""

import io
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Self

import numpy as np
import numpy.typing as npt

from klms.errors import CorruptMessage
from klms.numerics.archive import read_arrays

Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class State:
    """Everything that one round hands to the next.

    `shared` goes to the clients, `private` stays with the server. `memories` is what each client keeps to itself, for
    methods that need it; it is here because the local engine plays all clients and its checkpoint must hold them.
    `downlink` is what the next broadcast needs: who holds which state, and how to lead everybody to this one.
    `sound` is what the server returns to if the loss explodes.
    """

    round: int
    """Number of completed rounds."""
    shared: Arrays = field(default_factory=dict)
    private: Arrays = field(default_factory=dict)
    memories: Mapping[int, npt.NDArray[np.generic]] = field(default_factory=dict)
    downlink: Arrays = field(default_factory=dict)
    sound: Arrays = field(default_factory=dict)

    def after(self, shared: Arrays, private: Arrays | None = None) -> Self:
        return replace(self, round=self.round + 1, shared=shared, private=self.private if private is None else private)

    def remembering(self, memories: Mapping[int, npt.NDArray[np.generic]]) -> Self:
        """Return the state with what the clients of a round now remember."""
        return replace(self, memories={**self.memories, **memories}) if memories else self

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        return np.asarray(self.shared[name], dtype=np.float32)

    def kept(self, name: str) -> npt.NDArray[np.float64]:
        """Return a private array as float64, for further sums."""
        return np.asarray(self.private[name], dtype=np.float64)

    def to_bytes(self, *, private: bool) -> bytes:
        """Return what the clients receive; with `private`, what a checkpoint holds. No pickle."""
        arrays = {f"shared.{name}": array for name, array in self.shared.items()}
        if private:
            arrays |= {f"private.{name}": array for name, array in self.private.items()}
            arrays |= {f"memories.{client}": array for client, array in self.memories.items()}
            arrays |= {f"downlink.{name}": array for name, array in self.downlink.items()}
            arrays |= {f"sound.{name}": array for name, array in self.sound.items()}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **{"round": np.array(self.round), **arrays})
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Undo `to_bytes`; raise `CorruptMessage` if the bytes are not a state."""
        return cls.read(io.BytesIO(data))

    @classmethod
    def read(cls, file: IO[bytes], *, only: Collection[str] | None = None, limit: int | None = None) -> Self:
        """Read a file of such bytes: everything, or `only` the round and what else is named, of at most `limit` bytes.

        Names are those of `to_bytes`, such as `shared.theta`.
        """
        names = ("shared", "private", "memories", "downlink", "sound")
        groups: dict[str, dict[str, npt.NDArray[np.generic]]] = {name: {} for name in names}
        size = file.seek(0, io.SEEK_END)  # `to_bytes` does not compress
        stored = read_arrays(file, size if limit is None else min(limit, size), only)
        try:
            for name, array in stored.items():
                group, _, rest = name.partition(".")
                if rest:
                    groups[group][rest] = array
            memories = {int(client): array for client, array in groups["memories"].items()}
            number = operator.index(stored["round"].item())
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptMessage(f"the bytes are not a state: {error!r}") from error
        if number < 0:
            raise CorruptMessage(f"the bytes are not a state: round {number}")
        return cls(number, groups["shared"], groups["private"], memories, groups["downlink"], groups["sound"])
