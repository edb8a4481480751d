"""The server's message to a client at the start of a round: steps from a state that the client holds, or a snapshot.

States are numbered, and step `n` leads from state `n - 1` to state `n`. A jump is a step that leads to state `n` from
the anchor: state 0, which every client can construct. A client that was away gets the steps that it missed, or the
last jump and the steps after that jump, or a snapshot, whichever is smallest. Every broadcast carries the digest of the
state that it leads to, so that no client trains on a different state: a client whose digest differs says so, and gets a
snapshot in the same round.

A broadcast is a `Frame` whose two numbers are those of the state that it builds on and of the state that it leads to.
The body of a snapshot is the state as its rule writes it; the body of steps is the length (u32) and the bytes of each
step. There are `number - base` steps from `base` to `number`. With a jump there are fewer: the first step is then the
jump, from the base to the state that the second step builds on.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from klms.errors import CorruptMessage
from klms.frame import OVERHEAD, Frame, Kind

_LENGTH = struct.Struct("<I")
ANCHOR = 0
"""Number of the anchor, the state that jumps start from. This state follows from the seed, or is empty."""
SERVER = (1 << 64) - 1
"""Client number in the keys of the server's own messages; no client has this number."""
_RARE = 64  # no snapshot is made while steps are smaller than 1/64 of the state: half a bit per parameter


@dataclass(frozen=True)
class Broadcast:
    """One broadcast, parsed. It leads to state `number`, and carries the digest of that state."""

    number: int
    digest: bytes
    base: int
    """Number of the state that the first step builds on."""
    steps: tuple[bytes, ...] = ()
    snapshot: bytes | None = None
    """The whole state, instead of steps."""

    @property
    def start(self) -> int:
        """Number of the state just before the one to which the first step leads.

        A step builds on this state, but a jump builds on the anchor.
        """
        return self.number - len(self.steps)

    @property
    def jumps(self) -> bool:
        return self.snapshot is None and self.base < self.start

    def to_bytes(self) -> bytes:
        if self.snapshot is not None:
            return Frame(Kind.SNAPSHOT, self.base, self.number, self.digest, self.snapshot).to_bytes()
        kind = Kind.JUMP if self.jumps else Kind.STEPS
        body = b"".join(part for step in self.steps for part in (_LENGTH.pack(len(step)), step))
        return Frame(kind, self.base, self.number, self.digest, body).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Broadcast":
        """Undo `to_bytes`; raise a `KLMSError` if the bytes are not a broadcast. Steps and snapshots are unchecked."""
        frame = Frame.from_bytes(data, Kind.STEPS, Kind.SNAPSHOT, Kind.JUMP)
        base, number, body = frame.first, frame.second, frame.body
        if frame.kind == Kind.SNAPSHOT:
            return cls(number, frame.digest, base, snapshot=body)
        steps: list[bytes] = []
        place = 0
        while place < len(body) and len(steps) < number - base:
            (length,) = _LENGTH.unpack_from(body.ljust(place + _LENGTH.size, b"\0"), place)
            place += _LENGTH.size + length
            steps.append(body[place - length : place])
        if frame.kind == Kind.JUMP:
            complete = base == ANCHOR and 0 < len(steps) < number
        else:
            complete = len(steps) == number - base
        if place != len(body) or not complete:
            raise CorruptMessage(f"the broadcast does not hold the steps from state {base} to state {number}")
        return cls(number, frame.digest, base, tuple(steps))


@dataclass(frozen=True)
class Trail:
    """The latest steps.

    Older steps are dropped once the trail is larger than a snapshot, because a snapshot then costs less.
    """

    number: int
    """Number of the state that the last step leads to."""
    steps: tuple[bytes, ...] = ()
    anchored: bool = False
    """Whether the first step is a jump."""

    @property
    def start(self) -> int:
        """Number of the state before the first step."""
        return self.number - len(self.steps)

    def to_bytes(self) -> bytes:
        """Return the trail as a broadcast of all its steps, without a digest."""
        return Broadcast(self.number, bytes(8), self.base(self.start), self.steps).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Trail":
        """Undo `to_bytes`; raise a `KLMSError` for other bytes."""
        broadcast = Broadcast.from_bytes(data)
        return cls(broadcast.number, broadcast.steps, broadcast.jumps)

    def then(self, step: bytes, limit: int) -> "Trail":
        """Return the trail with one more step, cut to at most `limit` bytes of steps and their lengths."""
        kept: list[bytes] = []
        room = limit
        for latest in (step, *reversed(self.steps)):
            room -= _LENGTH.size + len(latest)  # counts the length field, so that even empty steps do not pile up
            if room < 0:
                break
            kept.append(latest)
        return Trail(self.number + 1, tuple(reversed(kept)), self.anchored and len(kept) > len(self.steps))

    def jump(self, step: bytes) -> "Trail":
        """Return the trail after a jump to the next state: no earlier step is needed any more."""
        return Trail(self.number + 1, (step,), anchored=True)

    def base(self, held: int) -> int:
        """Return the number of the state from which a client with state `held` continues: `held` or the anchor."""
        return ANCHOR if self.anchored and held <= self.start else held

    def since(self, held: int) -> tuple[bytes, ...] | None:
        """Return the steps that a client with state `held` lacks; None if the trail does not lead on from there."""
        missing = self.number - held
        if missing < 0:
            return None
        if self.anchored and held <= self.start:
            return self.steps
        return None if missing > len(self.steps) else self.steps[len(self.steps) - missing :]

    def size_since(self, held: int) -> int | None:
        steps = self.since(held)
        return None if steps is None else sum(map(len, steps)) + _LENGTH.size * len(steps)


@dataclass
class Sender:
    """Chooses for every client the smaller of a snapshot and the steps that it lacks."""

    trail: Trail
    digest: bytes
    make_snapshot: Callable[[], bytes]
    """Returns the bytes of a snapshot; called at most once, and only if it may be smaller than steps."""
    size: int
    """Bytes of the state itself."""
    snapshot_size: int | None = None
    """Bytes of a snapshot, if known before it is made."""
    _made: dict[int | None, bytes] = field(default_factory=dict)

    def message(self, held: int | None) -> bytes:
        """Return the message for a client that holds state `held`; None stands for a client without a usable state."""
        if held not in self._made:
            self._made[held] = self._message(held)
        return self._made[held]

    def _message(self, held: int | None) -> bytes:
        number = self.trail.number
        if held is None:
            return Broadcast(number, self.digest, number, snapshot=self.make_snapshot()).to_bytes()
        steps, size = self.trail.since(held), self.trail.size_since(held)
        if steps is None or size is None:
            return self.message(None)
        if size > self.size // _RARE and size > self._size_of_snapshot():
            return self.message(None)
        return Broadcast(number, self.digest, self.trail.base(held), steps).to_bytes()

    def _size_of_snapshot(self) -> int:
        return len(self.message(None)) - OVERHEAD if self.snapshot_size is None else self.snapshot_size
