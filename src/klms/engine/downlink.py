"""The downlink of klms's own methods: how every client gets the state of a round, in as few bytes as possible.

`auto` relays: the server sends the messages of the last round instead of their outcome. Round 1 sends nothing, since
the first state follows from the seed. `snapshot` always sends the state itself, so that no client sees what another
client sent. `coded` sends the difference from the state that clients hold. Clients then train at the decoded state
`w_hat`, while the server's own `w` is evaluated and exported. The rules are in `steps.py`; the exchange applies them,
and makes jumps and snapshots.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from klms.engine import rate_choice
from klms.engine.federation import participants
from klms.engine.steps import CodedSteps, RelayedSteps, write_relayed
from klms.errors import InvalidArgument
from klms.exchange.broadcast import Sender, Trail
from klms.exchange.held import Held, follow, lead
from klms.methods.base import Method, Outcome
from klms.methods.entry import RunSettings
from klms.methods.state import State


class Relay:
    """The messages of a round, in the order in which they were added up; empty once they are larger than a snapshot."""

    def __init__(self, state: State) -> None:
        self.limit = sum(array.nbytes for array in state.shared.values())
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, client: int, message: bytes, *, late: bool = False) -> None:
        self.parts.append(write_relayed(client, message))
        self.size += len(self.parts[-1])
        if late:  # a relayed message does not say from which state it was trained
            self.limit = 0
        if self.size > self.limit:
            self.parts = []


@dataclass(frozen=True)
class Broadcasts:
    """The messages to clients at the start of a round."""

    downlink: "Downlink"
    held: Held[State]
    """The state that every client has after reading its message."""
    sender: Sender

    @property
    def state(self) -> State:
        return self.held.state

    @property
    def model(self) -> State:
        """The state to which the updates of clients are added."""
        return self.held.model

    def message(self, client: int) -> bytes:
        return self.sender.message(self.held.by(str(client)))

    def snapshot(self) -> bytes:
        """Return the message for a client that turned out to hold another state."""
        return self.sender.message(None)


@dataclass(frozen=True)
class Downlink:
    """The server's side of the downlink, and the steps that both sides take."""

    method: Method
    settings: RunSettings

    def __post_init__(self) -> None:
        if self.settings.downlink == "coded" and self.method.vector_name is None:
            raise InvalidArgument(f"{self.settings.method} has no coded downlink: use downlink auto or snapshot")

    def open(self, state: State) -> Broadcasts:
        """Return the broadcasts of the round after `state`. The same state always gives the same bytes."""
        held = state.held.of(lambda _: state)
        if state.held.state is not None:
            views = state.held.of(lambda shared: replace(state, round=held.number, shared=shared or {}))
            held = self._lead(state, views)
        return Broadcasts(self, held, held.sender(self._rule()))

    def close(
        self, before: State, broadcasts: Broadcasts, outcome: Outcome, reached: Mapping[int, int], relay: Relay
    ) -> State:
        """Return the state of the outcome, together with the data that the next broadcasts need.

        For each client that answered, `reached` has the number of the state from which it trained; `relay` has the
        messages that led to the outcome.
        """
        after, held = outcome.state, broadcasts.held
        for client, number in sorted(reached.items()):
            held = held.reached(str(client), number=number)
        if self.settings.downlink == "coded":
            name = str(self.method.vector_name)
            if outcome.undone or not relay.size:  # then the server keeps its own vector, not the clients' version
                after = replace(after, shared={**after.shared, name: before.vector(name)})
            return replace(after, held=held.of(lambda state: state.shared))
        trail = Trail(held.number + 1)
        if self.settings.downlink == "auto" and relay.size <= relay.limit:
            head = self._rule().head(after)
            trail = held.trail.then(head + b"".join(relay.parts), relay.limit)
        return replace(after, held=Held(None, trail, held.by_client))

    def follow(self, data: bytes, held: State | None) -> State:
        """Return the state to which a broadcast leads a client that holds `held`, or the first state if `held` is None.

        Raise `OutOfSync` if the broadcast does not build on `held` or the result is not the server's state, and another
        `KLMSError` if the bytes are not a broadcast.
        """
        state = self.method.init() if held is None else held
        return follow(self._rule(), data, state.round, state)[1]

    def digest(self, state: State) -> bytes:
        return self._rule().digest(state, state.round)

    def _lead(self, state: State, held: Held[State]) -> Held[State]:
        """Return the clients' state after a coded step or a jump towards `state`."""
        lags = held.lags(map(str, participants(self.settings, state.round + 1)))
        rule = CodedSteps(self.method, self.settings)
        learned = state.learned
        rate = self.settings.rates.down(self.settings.moment_after(state, self.method.layout.d))
        most = None if learned is None else rate_choice.bearable(learned.known, self.settings)
        led = lead(rule, held, state, rate, lags, bearable=most)
        if learned is None:
            return led
        learned = rate_choice.after_step(learned, self.method.layout, rule.difference(held.model, state), led)
        return led.of(lambda one: replace(one, learned=learned))

    def _rule(self) -> CodedSteps | RelayedSteps:
        coded = self.settings.downlink == "coded"
        return CodedSteps(self.method, self.settings) if coded else RelayedSteps(self.method, self.settings)
