"""What the downlink hands from one round to the next: who holds which state, and the steps that lead everybody on."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self

import numpy as np

from klms.exchange.broadcast import Trail
from klms.exchange.echo import Echo
from klms.methods.state import Arrays, State
from klms.numerics.jit import Int64

_VIEW = "view."


@dataclass(frozen=True)
class DownlinkState:
    """Where clients stand after a round. Relayed steps lead to the server's own state, coded ones to the one before."""

    held: Int64
    """Number of the state that each client holds, as far as the server knows."""
    trail: Trail
    view: Arrays = field(default_factory=dict)
    """Shared arrays that coded steps lead to; empty if steps are relayed, since these lead to the server's own."""
    echo: Echo = field(default_factory=Echo)
    """Errors of coded steps."""

    @classmethod
    def of(cls, state: State, clients: int) -> Self:
        """Return where clients stand after a round; before the first one, all hold the first state."""
        if not state.downlink:
            return cls(np.zeros(clients, dtype=np.int64), Trail(state.round))
        return cls.read(state.downlink)

    @classmethod
    def read(cls, kept: Arrays) -> Self:
        """Undo `in_state`, given `State.downlink`."""
        ends = [0, *np.cumsum(kept["lengths"]).tolist()]
        joined = np.asarray(kept["steps"]).tobytes()
        steps = tuple(joined[start:end] for start, end in pairwise(ends))
        return cls(
            held=np.asarray(kept["held"], dtype=np.int64),
            trail=Trail(int(kept["number"]), steps, bool(kept["anchored"])),
            view={name.removeprefix(_VIEW): array for name, array in kept.items() if name.startswith(_VIEW)},
            echo=Echo(kept["echo"].astype(np.float64)) if "echo" in kept else Echo(),
        )

    def in_state(self, state: State) -> State:
        """Return the state with this in it."""
        steps = self.trail.steps
        kept: Arrays = {
            "held": self.held,
            "lengths": np.array([len(step) for step in steps], dtype=np.int64),
            "steps": np.frombuffer(b"".join(steps), dtype=np.uint8),
            "number": np.array(self.trail.number),
            "anchored": np.array(self.trail.anchored),
            **{_VIEW + name: array for name, array in self.view.items()},
        }
        if self.echo.sketches.size:
            kept = {**kept, "echo": self.echo.sketches.astype(np.float32)}
        return replace(state, downlink=kept)

    def without(self, number: int) -> Self:
        """Return this for a server that gave up state `number`, which it has reached, for another of that number.

        Clients hold what they held. Steps that lead to the state that was given up, or build on it, go; coded ones lead
        to the state before, and stay.
        """
        return self if self.trail.number < number else replace(self, trail=Trail(number))
