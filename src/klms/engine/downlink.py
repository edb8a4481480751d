"""The downlink of our methods: how every client comes to hold the state of a round, in as few bytes as possible.

`auto` relays: all parties share the keys, so the server sends the messages of the last round instead of their outcome,
and every client decodes them and computes the same next state. Round 1 sends nothing, since the first state follows
from the seed. A client that was away gets all the messages that it missed, or a snapshot if that is smaller.
`snapshot` always sends the state itself, which shows no client what another one sent. `coded` sends the difference to
what clients hold (`coded_steps.py`). Clients then train at `w_hat`; the server's own `w` is what is evaluated and
exported.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from klms.compressors.base import check_decoded
from klms.engine.broadcast import Broadcast, History, Sender, digest_of
from klms.engine.coded_steps import CodedSteps
from klms.engine.downlink_state import DownlinkState
from klms.engine.federation import participants
from klms.engine.snapshot import read_snapshot, write_snapshot
from klms.errors import CorruptMessage, InvalidArgument, OutOfSync
from klms.methods.base import Method, Outcome
from klms.methods.entry import RunSettings
from klms.methods.state import Arrays, State
from klms.numerics.jit import Int64

_RELAYED = struct.Struct("<II")


class Relay:
    """The messages of a round, in the order in which they were added up; none once they outgrow a snapshot."""

    def __init__(self, state: State) -> None:
        self.limit = _size(state.shared)
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, client: int, message: bytes) -> None:
        self.size += _RELAYED.size + len(message)
        if self.size <= self.limit:
            self.parts += [_RELAYED.pack(client, len(message)), message]
        else:
            self.parts = []


@dataclass(frozen=True)
class Opened:
    """A round whose broadcast is ready."""

    downlink: "Downlink"
    state: State
    """What every client holds once it has read its message."""
    history: History
    sender: Sender
    held: Int64
    """Number of the state that each client holds, as far as the server knows."""

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

    @property
    def coded(self) -> CodedSteps:
        return CodedSteps(self.method, self.settings)

    def open(self, state: State) -> Opened:
        """Return the broadcast of the round after `state`. The same state always gives the same bytes."""
        kept, shared = DownlinkState.of(state, self.settings.clients), state.shared
        history = kept.history
        if history.number < state.round:
            coming = kept.held[participants(self.settings, state.round + 1)].tolist()
            history, shared = self.coded.lead(state, kept.view, history, coming, kept.echo)
        seen = replace(state, shared=shared)

        # Only clients that take the server's step themselves need what it keeps.
        left_out = self.method.server_only if self.settings.downlink == "auto" else frozenset(state.private)

        def snapshot() -> bytes:
            return write_snapshot(seen, left_out)

        return Opened(self, seen, history, Sender(history, self.digest(seen), snapshot, _size(shared)), kept.held)

    def close(self, before: State, opened: Opened, outcome: Outcome, reached: Sequence[int], relay: "Relay") -> State:
        """Return the outcome with what the next broadcast needs, given the clients that answered and what led to it."""
        after, kept = outcome.state, DownlinkState.of(before, self.settings.clients)
        mode, history = self.settings.downlink, opened.history
        held = opened.held.copy()
        held[list(reached)] = history.number
        if mode == "coded":
            name = str(self.method.vector_name)
            if outcome.undone or not relay.size:  # that leaves the server's own vector, not what clients hold of it
                after = replace(after, shared={**after.shared, name: before.vector(name)})
            echo = kept.echo
            if name in kept.view:  # there was a step
                view = np.asarray(kept.view[name], dtype=np.float32)
                echo = echo.then(before.vector(name) - view, opened.state.vector(name) - view)
            return DownlinkState(held, history, opened.state.shared, echo).in_state(after)
        if mode == "auto" and relay.size <= relay.limit:
            history = history.then(b"".join(relay.parts), relay.limit)
        else:
            history = History(history.number + 1)
        return DownlinkState(held, history).in_state(after)

    def follow(self, data: bytes, held: State | None) -> State:
        """Return the state that a broadcast leads a client to, from what it holds; None means the first state.

        Raise `OutOfSync` if it does not lead there, and another `KLMSError` if the bytes are not a broadcast.
        """
        broadcast = Broadcast.from_bytes(data)
        if broadcast.snapshot is not None:
            state = read_snapshot(broadcast.snapshot, self.method.init())
            if state.round != broadcast.number:
                raise CorruptMessage(f"the snapshot is of state {state.round}, not of state {broadcast.number}")
        else:
            state = self.method.init() if held is None else held
            if not broadcast.base <= state.round <= broadcast.number:
                raise OutOfSync(f"the broadcast builds on state {broadcast.base}; this client holds {state.round}")
            if broadcast.jumps and state.round <= broadcast.start:
                state = replace(self.method.init(), round=broadcast.start)
            try:
                for step in broadcast.steps[state.round - broadcast.start :]:
                    state = self._taken(state, step)
            except Exception as error:  # what the client held may be damaged in any way; a snapshot mends it
                raise OutOfSync(f"a step does not fit this client's state {state.round}: {error}") from error
        if self.digest(state) != broadcast.digest:
            raise OutOfSync(f"this client's state {state.round} differs from the server's state {broadcast.number}")
        return state

    def digest(self, state: State) -> bytes:
        return digest_of(state.round, state.shared)

    def _taken(self, state: State, step: bytes) -> State:
        if self.settings.downlink == "coded":
            return state.after(self.coded.taken(state.shared, state.round + 1, step))
        received = self.method.receive(state)
        for client, message in _relayed(step):
            received.add(check_decoded(self.method.decode(state, client, message)), len(message))
        return self.method.conclude(state, received).state if received.count else state.after(state.shared)


def _relayed(step: bytes) -> Iterable[tuple[int, bytes]]:
    place = 0
    while place < len(step):
        if len(step) - place < _RELAYED.size:
            raise CorruptMessage("the relayed messages are cut off")
        client, length = _RELAYED.unpack_from(step, place)
        place += _RELAYED.size
        yield client, step[place : place + length]
        place += length


def _size(shared: Arrays) -> int:
    return sum(array.nbytes for array in shared.values())
