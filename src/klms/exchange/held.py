"""What all clients hold, and how each of them comes to hold it: the one mechanism for any app and for our methods.

A `Rule` says what a state is and how a step leads from one state to the next: by the messages of a round, which
everybody aggregates, or by a coded difference. `Held` is the server's knowledge: the state that everybody has after its
message, the latest steps, and who holds what. `follow` is the client's part.

With coded differences, clients that come once in many rounds would need many steps. So the server also tries a jump:
the difference to the anchor, at as many bits as it takes to come as close to the wanted state as a step brings draws of
a normal distribution. If that costs clients fewer bytes in all, it becomes the next state, and everybody who comes
later is led through it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from klms.compressors.trellis import MAX_RATE, MIN_RATE
from klms.errors import OutOfSync
from klms.exchange.broadcast import ANCHOR, Broadcast, Sender, Trail

T = TypeVar("T")

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

    def code(self, base: T, wanted: T, number: int, rate: float) -> bytes:
        """Return a step of so many bits per parameter from the base towards state `number`, with the least error."""

    def distance(self, state: T, wanted: T) -> float:
        """Return the squared distance of the parameters that are coded."""

    def parameters(self, wanted: T) -> int:
        """Return how many parameters are coded."""


@dataclass(frozen=True)
class Held(Generic[T]):
    """The state that every client has once it has read its message, and what the server needs to lead it there."""

    state: T
    trail: Trail = field(default_factory=lambda: Trail(ANCHOR))
    by_client: Mapping[str, int] = field(default_factory=dict)
    """Number of the state that each client holds, as far as the server knows."""

    @property
    def number(self) -> int:
        return self.trail.number

    def reached(self, *clients: str) -> "Held[T]":
        """Return the same, where these clients hold the latest state."""
        return replace(self, by_client={**self.by_client, **dict.fromkeys(clients, self.number)})

    def without(self, client: str) -> "Held[T]":
        """Return the same, where this client holds nothing of use."""
        return replace(self, by_client={name: n for name, n in self.by_client.items() if name != client})

    def sender(self, rule: Rule[T], snapshot_size: int | None = None) -> Sender:
        digest, size = rule.digest(self.state, self.number), rule.nbytes(self.state)
        return Sender(self.trail, digest, lambda: rule.write(self.state), size, snapshot_size)

    def lags(self, clients: Sequence[str]) -> list[int]:
        """Return how many steps these clients lack; all of them if nothing is known."""
        return [self.number - self.by_client.get(client, ANCHOR) for client in clients]


def follow(rule: Rule[T], data: bytes, number: int, state: T) -> tuple[int, T]:
    """Return the state that a broadcast leads a client to, and its number, from what it holds.

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
    return number, state


def led(rule: CodedRule[T], held: Held[T], wanted: T, step: bytes, rate: float, lags: Sequence[int]) -> Held[T]:
    """Return what clients hold after a step towards the wanted state, or after a jump if that is cheaper for them.

    `step` has been coded already, at `rate` bits per parameter; `lags` are how many steps the clients that will come
    lack besides this one.
    """
    trail = held.trail.then(step, rule.nbytes(wanted))
    if any(lags):
        size = rule.nbytes(wanted)
        paths = [trail.size_since(held.number - lag) for lag in lags]
        cost = sum(size if path is None else min(size, path) for path in paths)
        jump = _jump(rule, held, wanted, rate, _WORTH * cost / len(lags))
        if jump is not None:
            return replace(held, state=jump[1], trail=held.trail.jump(jump[0]))
    return replace(held, state=rule.take(held.state, trail.number, step), trail=trail)


def _jump(rule: CodedRule[T], held: Held[T], wanted: T, rate: float, most: float) -> tuple[bytes, T] | None:
    """Return a jump that comes as close to the wanted state as a step of least error should, and where it leads.

    Return None if that takes more than `most` bytes.
    """
    anchor, number = rule.anchor(), held.number + 1
    far, before = rule.distance(anchor, wanted), rule.distance(held.state, wanted)
    near = before / 4**rate
    if held.number == ANCHOR or not 0 < near < far:  # a jump to state 1 would be the step
        return None
    bits = _bits(far, near)
    if _SHARES[0] * bits * rule.parameters(wanted) / 8 > most:
        return None
    coded = _coder(rule, anchor, wanted, number)
    rate = _SHARES[1] * bits
    jump, landed = coded(rate)
    found = max(rule.distance(landed, wanted), _TINY * near)
    if not _NEARER < found / near < _FARTHER:
        lacking = _bits(found, near)
        if lacking < 0:  # fewer than that may be taken off: the first bits gain more than the last ones
            lacking *= rate / (bits - lacking)
        jump, landed = coded(rate + lacking)
    fits = len(jump) <= most and rule.distance(landed, wanted) < _FARTHER * near
    return (jump, landed) if fits else None


def _coder(rule: CodedRule[T], anchor: T, wanted: T, number: int) -> Callable[[float], tuple[bytes, T]]:
    def coded(rate: float) -> tuple[bytes, T]:
        jump = rule.code(anchor, wanted, number, min(max(rate, MIN_RATE), MAX_RATE))
        return jump, rule.take(anchor, number, jump)

    return coded


def _bits(error: float, wanted: float) -> float:
    """Return the bits per parameter that bring an error to the wanted one, where each divides it by 4."""
    return math.log2(error / wanted) / 2
