"""What all clients hold, and how each of them comes to hold it: the one mechanism for any app and for our methods.

A `Rule` says what a state is and how a step leads from one state to the next: by the messages of a round, which
everybody aggregates, or by a coded difference. `Held` is the server's knowledge: the state that everybody has after its
message, the latest steps, and who holds what. `follow` is the client's part.

With coded differences, clients that come once in many rounds would need many steps. Where that costs them fewer bytes,
the next state is a jump: the difference to the anchor, coded afresh, through which everybody is led who comes later.

The error of a step becomes part of the model: the server goes on from what clients hold. The error of a jump, for which
the bits of a few steps must do, is larger, and does not. After a jump the server keeps the state that it wanted as its
own, to which updates are added, while clients train beside it. Further steps then lead clients to that state, until
they are no farther off than the noise of a step would take them.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from klms.compressors.base import Vector, least_noise
from klms.compressors.trellis import product
from klms.container import Array, Arrays
from klms.errors import CorruptMessage, OutOfSync
from klms.exchange.broadcast import ANCHOR, Broadcast, Sender, Trail

T = TypeVar("T")
U = TypeVar("U")

JUMP_RATE = 2.8
"""Bits per parameter that a jump needs at most: a relative error of 0.02, which training bears (docs/downlink.md)."""
_NEGLIGIBLE = 1e-7  # squared error of what clients hold that needs no further bits
_SHARES = 256  # steps of an echo, so that no last bit of a sum changes a byte
_BEARABLE = 2.0  # error of a jump that becomes part of the model, relative to the noise of a step; steps approach 1


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
        """Return the size of a state, with which the size of steps is compared."""


class CodedRule(Rule[T], Protocol[T]):
    """Steps that are coded differences."""

    def difference(self, base: T, wanted: T) -> Vector:
        """Return the difference of the parameters that are coded."""

    def code(self, base: T, wanted: T, number: int, rate: float, echo: float = 1.0) -> bytes:
        """Return a step from the base to state `number`, at so many bits per parameter.

        `echo` is the share of its error that the next difference is expected to hold. It shortens the step: with all of
        it, the step has the least error, and with none of it, the right length on average.
        """

    def echo(self, difference: Vector, error: Vector) -> float:
        """Return that share for a step, given the error of the last one: `echo_in` measures it."""


@dataclass(frozen=True)
class Held(Generic[T]):
    """The state that every client has once it has read its message, and what the server needs to lead it there."""

    state: T
    trail: Trail = field(default_factory=lambda: Trail(ANCHOR))
    by_client: Mapping[str, int] = field(default_factory=dict)
    """Number of the state that each client holds, as far as the server knows."""
    error: Vector = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    """How far the state is from what was wanted when it was coded; empty if it was not."""
    own: T | None = None
    """The server's own state after a jump; None if it is what clients hold."""

    @property
    def number(self) -> int:
        return self.trail.number

    @property
    def model(self) -> T:
        """The state to which the updates of clients are added."""
        return self.state if self.own is None else self.own

    def of(self, form: Callable[[T], U]) -> "Held[U]":
        """Return the same, with states of another form."""
        own = None if self.own is None else form(self.own)
        return Held(form(self.state), self.trail, self.by_client, self.error, own)

    def reached(self, *clients: str, number: int | None = None) -> "Held[T]":
        """Return the same, where these clients hold a state: by default the latest."""
        number = self.number if number is None else number
        return replace(self, by_client={**self.by_client, **dict.fromkeys(clients, number)})

    def without(self, client: str) -> "Held[T]":
        """Return the same, where this client holds nothing of use."""
        return replace(self, by_client={name: n for name, n in self.by_client.items() if name != client})

    def by(self, client: str) -> int:
        """Return the number of the state that a client holds; for a client that was never seen, that is the anchor."""
        return self.by_client.get(client, ANCHOR)

    def lags(self, clients: Iterable[str]) -> list[int]:
        """Return how many steps these clients lack."""
        return [self.number - self.by(client) for client in clients]

    def sender(self, rule: Rule[T], snapshot_size: int | None = None) -> Sender:
        digest, size = rule.digest(self.state, self.number), rule.nbytes(self.state)
        return Sender(self.trail, digest, lambda: rule.write(self.state), size, snapshot_size)

    def to_arrays(self) -> dict[str, Array]:
        """Return everything but the states as arrays."""
        steps = np.frombuffer(self.trail.to_bytes(), np.uint8)
        clients = np.frombuffer(json.dumps(dict(self.by_client)).encode(), np.uint8)
        return {"steps": steps, "clients": clients, "error": self.error}

    @classmethod
    def from_arrays(cls, arrays: Arrays, state: T, own: T | None) -> "Held[T]":
        """Undo `to_arrays`; raise `CorruptMessage` for other arrays."""
        try:
            trail = Trail.from_bytes(arrays["steps"].tobytes())
            clients = json.loads(arrays["clients"].tobytes())
            by_client = {str(client): int(number) for client, number in clients.items()}
            error = arrays["error"].astype(np.float32).reshape(-1)
            if not np.isfinite(error).all():
                raise CorruptMessage("the error of what clients hold is not finite")
            return cls(state, trail, by_client, error, own)
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
    bearable: float | None = None,
) -> Held[T]:
    """Return what clients hold after a step towards the wanted state, or after a jump if that is cheaper for them.

    A step takes `rate` bits per parameter. `lags` are how many steps the clients that will come lack besides this one.
    `bearable` is the energy of a jump's error that becomes part of the model; unless it is given, that is about as much
    as the noise of a step.
    """
    difference = rule.difference(held.model, wanted)
    size = rule.nbytes(wanted)
    step_bytes = rate * difference.size / 8
    near = _square(difference)
    far = _square(rule.difference(rule.anchor(), wanted)) if any(lags) or held.own is not None else 0.0
    jump_rate = _jump_rate(rate, far, near)
    if any(lags) and jump_rate * difference.size / 8 < _mean_bytes(held, lags, step_bytes, size):
        return jump(rule, held, wanted, jump_rate)
    number = held.number + 1
    own = None
    if held.own is not None:
        most = _BEARABLE * least_noise(rate) * near + _NEGLIGIBLE * far if bearable is None else bearable
        if _square(rule.difference(held.own, held.state)) > most:
            own = wanted
    if own is not None:
        step = rule.code(held.state, wanted, number, rate)
    else:
        step = rule.code(held.model, wanted, number, rate, rule.echo(difference, held.error))
    state = rule.take(held.state, number, step)
    return Held(state, held.trail.then(step, size), held.by_client, rule.difference(wanted, state), own)


def echo_in(difference: Vector, error: Vector) -> float:
    """Return the share of the last error that this difference takes back, from 0 to 1.

    Clients repair some of it by their next updates, and a strategy that keeps a model of its own takes back all of it.
    Noise would then add up, unless a step falls short by as much as it would have to take back.

    >>> error = np.ones(4, dtype=np.float32)
    >>> echo_in(np.array([1, -1, 0, -1], dtype=np.float32), error)
    0.25
    """
    energy = _square(error) if error.size == difference.size else 0.0
    if energy == 0:
        return 0.0
    share = -product(difference, error) / energy
    return round(min(1.0, max(0.0, share)) * _SHARES) / _SHARES


def jump(rule: CodedRule[T], held: Held[T], wanted: T, rate: float = JUMP_RATE) -> Held[T]:
    """Return what clients hold after a jump of so many bits per parameter."""
    anchor = rule.anchor()
    step = rule.code(anchor, wanted, held.number + 1, rate)
    state = rule.take(anchor, held.number + 1, step)
    return Held(state, held.trail.jump(step), held.by_client, rule.difference(wanted, state), own=wanted)


def _jump_rate(rate: float, far: float, near: float) -> float:
    """Return the bits per parameter at which a jump comes as close as a step, or `JUMP_RATE` if those are fewer.

    `far` and `near` are the squared lengths of the jump and of the step, and `rate` are the bits of the step.
    """
    most = max(rate, JUMP_RATE)
    return most if near == 0 else min(most, rate + math.log2(max(far / near, 1.0)) / 2)


def _mean_bytes(held: Held[T], lags: Sequence[int], step: float, snapshot: int) -> float:
    """Return what clients with these lags would be sent if another step followed."""
    paths = [held.trail.size_since(held.number - lag) for lag in lags]
    return sum(snapshot if path is None else min(snapshot, path + step) for path in paths) / len(lags)


def _square(vector: Vector) -> float:
    return product(vector, vector)
