"""The state that all clients hold, and how each client gets to it, both for `Server` and for the methods of klms.

A `Rule` says what a state is and how a step leads from one state to the next: by the messages of a round, which every
client aggregates, or by a coded difference. `Held` is what the server knows: the state that every client has after
reading its message, the latest steps, and which client holds which state. `follow` is the client's part.

With coded differences, a client that takes part once in many rounds would need many steps. Where a jump costs such
clients fewer bytes, the next step is a jump: the difference from the anchor, coded afresh. Clients that take part later
are led through the jump.

The error of a step becomes part of the model: the server continues from the state that clients hold. The error of a
jump, which has only the bits of a few steps, is larger, and does not become part of the model. After a jump, the server
keeps the wanted state as its own and adds updates to it, while clients train at the state that they decoded. Further
steps then lead clients towards the server's state, until their distance from it is about the noise of a step.
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
"""Bits per parameter that suffice for any jump: they leave a relative error of 0.02, which training tolerates
(docs/downlink.md)."""
_NEGLIGIBLE = 1e-7  # squared error of the clients' state, relative to a jump, that is not worth further bits
_SHARES = 256  # levels to which an echo is rounded, so that rounding errors in a sum change no byte
_BEARABLE = 2.0
"""Largest error of a jump that may become part of the model, in units of a step's noise. The steps after a jump
bring its error down to about one such unit."""


class Rule(Protocol[T]):
    """Defines what a state is, and how a step leads from one state to the next. Both sides have the same rule."""

    def anchor(self) -> T:
        """Return state 0, which every client can construct."""

    def take(self, state: T, number: int, step: bytes) -> T:
        """Return state `number`, to which the step leads from `state`."""

    def write(self, state: T) -> bytes:
        """Return a snapshot of the state."""

    def read(self, snapshot: bytes, number: int) -> T:
        """Undo `write`, for a snapshot of state `number`."""

    def digest(self, state: T, number: int) -> bytes:
        """Return eight bytes that differ if the states differ."""

    def nbytes(self, state: T) -> int:
        """Return the size of a state in bytes, for comparison with the size of steps."""


class CodedRule(Rule[T], Protocol[T]):
    """A rule whose steps are coded differences."""

    def difference(self, base: T, wanted: T) -> Vector:
        """Return `wanted` minus `base`, for the parameters that are coded."""

    def code(self, base: T, wanted: T, number: int, rate: float, echo: float = 1.0) -> bytes:
        """Return a step from the base to state `number`, at `rate` bits per parameter.

        `echo` is the share of the step's error that the next difference is expected to undo. The larger it is, the
        shorter the step: at 0, the step's length is right on average; at 1, its error is smallest.
        """

    def echo(self, difference: Vector, error: Vector) -> float:
        """Return the `echo` for a step with this difference, given the error of the last step; see `echo_in`."""


@dataclass(frozen=True)
class Held(Generic[T]):
    """The state that every client has after reading its message, and what the server needs to lead clients there."""

    state: T
    trail: Trail = field(default_factory=lambda: Trail(ANCHOR))
    by_client: Mapping[str, int] = field(default_factory=dict)
    """Number of the state that each client holds, as far as the server knows."""
    error: Vector = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    """Coded state minus the wanted state; empty if the state was not coded."""
    own: T | None = None
    """The server's own state after a jump; None if it is the state that clients hold."""

    @property
    def number(self) -> int:
        return self.trail.number

    @property
    def model(self) -> T:
        """The state to which the updates of clients are added."""
        return self.state if self.own is None else self.own

    def of(self, form: Callable[[T], U]) -> "Held[U]":
        """Return a copy whose states are converted by `form`."""
        own = None if self.own is None else form(self.own)
        return Held(form(self.state), self.trail, self.by_client, self.error, own)

    def reached(self, *clients: str, number: int | None = None) -> "Held[T]":
        """Return a copy in which these clients hold state `number`, by default the latest."""
        number = self.number if number is None else number
        return replace(self, by_client={**self.by_client, **dict.fromkeys(clients, number)})

    def without(self, client: str) -> "Held[T]":
        """Return a copy in which this client holds no usable state."""
        return replace(self, by_client={name: n for name, n in self.by_client.items() if name != client})

    def by(self, client: str) -> int:
        """Return the number of the state that a client holds: the anchor's for a client that was never seen."""
        return self.by_client.get(client, ANCHOR)

    def lags(self, clients: Iterable[str]) -> list[int]:
        """Return the number of steps that each of these clients lacks."""
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
            raise CorruptMessage(f"the record of what clients hold cannot be read: {error!r}") from error


def follow(rule: Rule[T], data: bytes, number: int, state: T) -> tuple[int, T, bytes]:
    """Apply a broadcast to the state that a client holds; return the new state's number, the state and its digest.

    Raise `OutOfSync` if the broadcast does not fit the client's state, and another `KLMSError` if the bytes are not a
    broadcast.
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
        except Exception as error:  # the client's state may be damaged in any way; a snapshot repairs it
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
    """Return the clients' state after a step towards the wanted state, or after a jump if that costs fewer bytes.

    A step has `rate` bits per parameter. `lags` holds, for each client that is expected next, the number of further
    steps that the client will lack. `bearable` is the largest energy at which a jump's error becomes part of the model;
    by default it is about the energy of a step's noise.
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
    """Return the share of the last error that this difference undoes, from 0 to 1.

    Clients' next updates repair part of the error, and a strategy that keeps a model of its own undoes all of it.
    Noise would then add up, unless steps are shortened by the share of the error that would be undone.

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
    """Return the clients' state after a jump at `rate` bits per parameter."""
    anchor = rule.anchor()
    step = rule.code(anchor, wanted, held.number + 1, rate)
    state = rule.take(anchor, held.number + 1, step)
    return Held(state, held.trail.jump(step), held.by_client, rule.difference(wanted, state), own=wanted)


def _jump_rate(rate: float, far: float, near: float) -> float:
    """Return the bits per parameter at which a jump has as little error as a step, but at most `JUMP_RATE`.

    `far` and `near` are the squared lengths of the jump and of the step. `rate` is the bits per parameter of the step;
    if it is above `JUMP_RATE`, the limit is `rate`.
    """
    most = max(rate, JUMP_RATE)
    return most if near == 0 else min(most, rate + math.log2(max(far / near, 1.0)) / 2)


def _mean_bytes(held: Held[T], lags: Sequence[int], step: float, snapshot: int) -> float:
    """Return the mean number of bytes that clients with these lags would be sent after one more step."""
    paths = [held.trail.size_since(held.number - lag) for lag in lags]
    return sum(snapshot if path is None else min(snapshot, path + step) for path in paths) / len(lags)


def _square(vector: Vector) -> float:
    return product(vector, vector)
