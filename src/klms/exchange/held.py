"""What all clients hold, and how each of them comes to hold it: the one mechanism for any app and for our methods.

A `Rule` says what a state is and how a step leads from one state to the next: by the messages of a round, which
everybody aggregates, or by a coded difference. `Held` is the server's knowledge: the state that everybody has after its
message, the latest steps, and who holds what. `follow` is the client's part.

With coded differences, clients that come once in many rounds would need many steps. So the server also tries a jump:
the difference to the anchor, at as many bits as it takes to come as close to the wanted state as a step brings draws of
a normal distribution. If that costs clients fewer bytes in all, it becomes the next state, and everybody who comes
later is led through it.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from klms.compressors.base import Vector
from klms.compressors.trellis import MAX_RATE, MIN_RATE
from klms.container import Array, Arrays
from klms.errors import CorruptMessage, OutOfSync
from klms.exchange.broadcast import ANCHOR, Broadcast, Sender, Trail
from klms.exchange.echo import Echo

T = TypeVar("T")
U = TypeVar("U")

_SHARES = 0.4, 0.6  # of the bits that a normal distribution would take: the least to hope for, and a first guess
_NEARER, _FARTHER = 0.9, 1.05  # squared error of a jump, relative to the wanted one
_TINY = 1e-9
_WORTH = 0.9  # bytes of a jump relative to those of steps, at most: steps often come closer


class Rule(Protocol[T]):
    """What a state is, and how a step leads from one state to the next. Both sides have the same rule."""

    def anchor(self) -> T:
        """Return state 0, which everybody can have."""

    def take(self, state: T, number: int, step: bytes) -> T:
        """Return state `number`, to which the step leads from this one."""

    def write(self, state: T) -> bytes:
        """Return a snapshot."""

    def read(self, snapshot: bytes, number: int) -> T:
        """Undo `write`, for a snapshot of state `number`."""

    def digest(self, state: T, number: int) -> bytes:
        """Return eight bytes that differ when states do."""

    def nbytes(self, state: T) -> int:
        """Return the size of a state, beside which steps are worth it or not."""


class CodedRule(Rule[T], Protocol[T]):
    """Steps that are coded differences."""

    def difference(self, base: T, wanted: T) -> Vector:
        """Return the difference of the parameters that are coded."""

    def code(self, base: T, wanted: T, number: int, rate: float, echo: float = 1.0, length: float = 1.0) -> bytes:
        """Return a step of this share of the way from the base to state `number`, at so many bits per parameter.

        `echo` is the share of earlier errors in the difference; with all of it, the step has the least error.
        """


@dataclass(frozen=True)
class Held(Generic[T]):
    """The state that every client has once it has read its message, and what the server needs to lead it there."""

    state: T
    trail: Trail = field(default_factory=lambda: Trail(ANCHOR))
    by_client: Mapping[str, int] = field(default_factory=dict)
    """Number of the state that each client holds, as far as the server knows."""
    echo: Echo = field(default_factory=Echo)
    """Errors of the latest coded steps."""

    @property
    def number(self) -> int:
        return self.trail.number

    def of(self, state: U) -> "Held[U]":
        """Return the same, with another form of the state."""
        return Held(state, self.trail, self.by_client, self.echo)

    def reached(self, *clients: str) -> "Held[T]":
        """Return the same, where these clients hold the latest state."""
        return replace(self, by_client={**self.by_client, **dict.fromkeys(clients, self.number)})

    def without(self, client: str) -> "Held[T]":
        """Return the same, where this client holds nothing of use."""
        return replace(self, by_client={name: n for name, n in self.by_client.items() if name != client})

    def by(self, client: str) -> int:
        """Return the number of the state that a client holds; one that was never seen can have the anchor."""
        return self.by_client.get(client, ANCHOR)

    def lags(self, clients: Iterable[str]) -> list[int]:
        """Return how many steps these clients lack."""
        return [self.number - self.by(client) for client in clients]

    def sender(self, rule: Rule[T], snapshot_size: int | None = None) -> Sender:
        digest, size = rule.digest(self.state, self.number), rule.nbytes(self.state)
        return Sender(self.trail, digest, lambda: rule.write(self.state), size, snapshot_size)

    def to_arrays(self) -> dict[str, Array]:
        """Return everything but the state as arrays."""
        steps = np.frombuffer(self.trail.to_bytes(), np.uint8)
        clients = np.frombuffer(json.dumps(dict(self.by_client)).encode(), np.uint8)
        return {"steps": steps, "clients": clients, "echo": self.echo.sketches}

    @classmethod
    def from_arrays(cls, arrays: Arrays, state: T) -> "Held[T]":
        """Undo `to_arrays`; raise `CorruptMessage` for other arrays."""
        try:
            trail = Trail.from_bytes(arrays["steps"].tobytes())
            clients = json.loads(arrays["clients"].tobytes())
            by_client = {str(client): int(number) for client, number in clients.items()}
            return cls(state, trail, by_client, Echo.of(arrays["echo"]))
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CorruptMessage(f"it is not known what clients hold: {error!r}") from error


def follow(rule: Rule[T], data: bytes, number: int, state: T) -> tuple[int, T, bytes]:
    """Return the number of the state that a broadcast leads a client to from what it holds, that state and its digest.

    Raise `OutOfSync` if it does not lead there, and another `KLMSError` if the bytes are not a broadcast.
    """
    broadcast = Broadcast.from_bytes(data)
    if broadcast.snapshot is not None:
        number, state = broadcast.number, rule.read(broadcast.snapshot, broadcast.number)
    else:
        if not broadcast.base <= number <= broadcast.number:
            raise OutOfSync(f"the broadcast builds on state {broadcast.base}; this client holds {number}")
        if broadcast.jumps and number <= broadcast.start:
            number, state = broadcast.start, rule.anchor()
        try:
            for step in broadcast.steps[number - broadcast.start :]:
                state = rule.take(state, number + 1, step)
                number += 1
        except Exception as error:  # what the client held may be damaged in any way; a snapshot mends it
            raise OutOfSync(f"a step does not fit this client's state {number}: {error}") from error
    if rule.digest(state, number) != broadcast.digest:
        raise OutOfSync(f"this client's state {number} differs from the server's state {broadcast.number}")
    return number, state, broadcast.digest


def lead(
    rule: CodedRule[T],
    held: Held[T],
    wanted: T,
    rate: float,
    lags: Sequence[int],
    *,
    echo: float | None = None,
    length: float = 1.0,
) -> Held[T]:
    """Return what clients hold after a step towards the wanted state, or after a jump if that is cheaper for them.

    A step takes `rate` bits per parameter. `lags` are how many steps the clients that will come lack besides this one.
    `echo` is as in `CodedRule.code`, and measured unless it is given.
    """
    difference = rule.difference(held.state, wanted)
    share = held.echo.share_in(difference) if echo is None else echo
    step = rule.code(held.state, wanted, held.number + 1, rate, share, length)
    size = rule.nbytes(wanted)
    trail = held.trail.then(step, size)
    jump = None
    if any(lags):
        paths = [trail.size_since(held.number - lag) for lag in lags]
        cost = sum(size if path is None else min(size, path) for path in paths)
        jump = _jump(rule, held, wanted, rate, _WORTH * cost / len(lags))
    if jump is None:
        state = rule.take(held.state, trail.number, step)
    else:
        trail, state = held.trail.jump(jump[0]), jump[1]
    errors = held.echo.then(difference, rule.difference(held.state, state)) if echo is None else held.echo
    return Held(state, trail, held.by_client, errors)


def _jump(rule: CodedRule[T], held: Held[T], wanted: T, rate: float, most: float) -> tuple[bytes, T] | None:
    """Return a jump that comes as close to the wanted state as a step of least error should, and where it leads.

    Return None if that takes more than `most` bytes.
    """
    anchor = rule.anchor()
    number = held.number + 1

    def distance(state: T) -> float:
        """Return the squared distance to the wanted state."""
        difference = rule.difference(state, wanted)
        return float(np.dot(difference, difference))

    def coded(rate: float) -> tuple[bytes, T]:
        jump = rule.code(anchor, wanted, number, min(max(rate, MIN_RATE), MAX_RATE))
        return jump, rule.take(anchor, number, jump)

    far = distance(anchor)
    near = distance(held.state) / 4**rate
    if held.number == ANCHOR or not 0 < near < far:  # a jump to state 1 would be the step
        return None
    bits = _bits(far, near)
    if _SHARES[0] * bits * rule.difference(anchor, wanted).size / 8 > most:
        return None
    rate = _SHARES[1] * bits
    jump, landed = coded(rate)
    found = max(distance(landed), _TINY * near)
    if not _NEARER < found / near < _FARTHER:
        lacking = _bits(found, near)
        if lacking < 0:  # fewer than that may be taken off: the first bits gain more than the last ones
            lacking *= rate / (bits - lacking)
        jump, landed = coded(rate + lacking)
    fits = len(jump) <= most and distance(landed) < _FARTHER * near
    return (jump, landed) if fits else None


def _bits(error: float, wanted: float) -> float:
    """Return the bits per parameter that bring an error to the wanted one, where each divides it by 4."""
    return math.log2(error / wanted) / 2
