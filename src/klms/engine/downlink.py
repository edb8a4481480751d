"""The downlink of our methods: how every client comes to hold the state of a round, in as few bytes as possible.

`auto` relays: the server sends the messages of the last round instead of their outcome. Round 1 sends nothing, since
the first state follows from the seed. `snapshot` always sends the state itself, which shows no client what another one
sent. `coded` sends the difference to what clients hold. Clients then train at `w_hat`; the server's own `w` is what is
evaluated and exported. `steps.py` has the rules; following them, jumps and snapshots are the exchange's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from klms.engine.downlink_state import DownlinkState
from klms.engine.federation import participants
from klms.engine.steps import CodedSteps, RelayedSteps, write_relayed
from klms.errors import InvalidArgument
from klms.exchange.broadcast import Sender, Trail
from klms.exchange.echo import Echo
from klms.exchange.held import Held, Rule, follow, led
from klms.exchange.step_length import step_length
from klms.methods.base import Method, Outcome
from klms.methods.entry import RunSettings
from klms.methods.state import State
from klms.numerics.jit import Int64


class Relay:
    """The messages of a round, in the order in which they were added up; none once they outgrow a snapshot."""

    def __init__(self, state: State) -> None:
        self.limit = sum(array.nbytes for array in state.shared.values())
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, client: int, message: bytes) -> None:
        parts = write_relayed(client, message)
        self.size += sum(map(len, parts))
        self.parts = self.parts + parts if self.size <= self.limit else []


@dataclass(frozen=True)
class Opened:
    """A round whose broadcast is ready."""

    downlink: "Downlink"
    state: State
    """What every client holds once it has read its message."""
    trail: Trail
    sender: Sender
    held: Int64
    """Number of the state that each client holds, as far as the server knows."""
    echo: Echo
    """Errors of the coded steps so far."""

    def message(self, client: int) -> bytes:
        return self.sender.message(int(self.held[client]))

    def snapshot(self) -> bytes:
        """Return the message for a client that turned out to hold something else."""
        return self.sender.message(None)


@dataclass(frozen=True)
class Downlink:
    """The server's side, and the steps that both sides take."""

    method: Method
    settings: RunSettings

    def __post_init__(self) -> None:
        if self.settings.downlink == "coded" and self.method.vector_name is None:
            raise InvalidArgument(f"{self.settings.method} has no coded downlink: use downlink auto or snapshot")

    def open(self, state: State) -> Opened:
        """Return the broadcast of the round after `state`. The same state always gives the same bytes."""
        kept = DownlinkState.of(state, self.settings.clients)
        held, echo = Held(state, kept.trail), kept.echo
        if kept.trail.number < state.round:
            held, echo = self._led(state, kept)
        return Opened(self, held.state, held.trail, held.sender(self._rule()), kept.held, echo)

    def close(self, before: State, opened: Opened, outcome: Outcome, reached: Sequence[int], relay: "Relay") -> State:
        """Return the outcome with what the next broadcast needs, given the clients that answered and what led to it."""
        after, trail = outcome.state, opened.trail
        held = opened.held.copy()
        held[list(reached)] = trail.number
        if self.settings.downlink == "coded":
            name = str(self.method.vector_name)
            if outcome.undone or not relay.size:  # that leaves the server's own vector, not what clients hold of it
                after = replace(after, shared={**after.shared, name: before.vector(name)})
            return DownlinkState(held, trail, opened.state.shared, opened.echo).in_state(after)
        if self.settings.downlink == "auto" and relay.size <= relay.limit:
            trail = trail.then(b"".join(relay.parts), relay.limit)
        else:
            trail = Trail(trail.number + 1)
        return DownlinkState(held, trail).in_state(after)

    def follow(self, data: bytes, held: State | None) -> State:
        """Return the state that a broadcast leads a client to, from what it holds; None means the first state.

        Raise `OutOfSync` if it does not lead there, and another `KLMSError` if the bytes are not a broadcast.
        """
        state = self.method.init() if held is None else held
        return follow(self._rule(), data, state.round, state)[1]

    def digest(self, state: State) -> bytes:
        return self._rule().digest(state, state.round)

    def _led(self, state: State, kept: DownlinkState) -> tuple[Held[State], Echo]:
        """Return what clients hold after a coded step or a jump towards `state`, and the errors of all steps so far."""
        rule, number = self._coded(), kept.trail.number
        view = replace(state, round=number, shared=kept.view)
        difference = rule.difference(view, state)
        share, length = 1.0, 1.0
        if not self.method.noisy_steps:
            share, length = kept.echo.of(difference), self._length(state.round)
        rate = self.settings.down_rate_in(state.round + 1, self.method.layout.d)
        step = rule.code(view, state, state.round, rate, share, length)
        coming = kept.held[participants(self.settings, state.round + 1)]
        held = led(rule, Held(view, kept.trail), state, step, rate, (number - coming).tolist())
        return held, kept.echo.then(difference, rule.difference(view, held.state))

    def _length(self, number: int) -> float:
        """Return the share of the difference to state `number` that a step covers."""
        d = self.method.layout.d
        up = self.settings.up_rate_in(number, d)
        bits = [math.inf if up is None else up] * self.settings.participants
        return step_length(bits, self.settings.down_rate_in(number + 1, d))

    def _rule(self) -> Rule[State]:
        return self._coded() if self.settings.downlink == "coded" else RelayedSteps(self.method, self.settings)

    def _coded(self) -> CodedSteps:
        return CodedSteps(self.method, self.settings)
