"""A client's answer to a request: the arrays that it trained, as an update of the arrays that it received.

The body of the frame: flags (u8), the norm of the update (f32), the length of the head (u32), the head (`model.py`),
and the message of the scheme. From the norm, the server infers how much noise the message has added. An answer without
arrays has an empty body; it tells the server that the request has arrived.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from klms import frame
from klms.codec import Decoded
from klms.compressors.base import Compressor, SideLearner, Vector
from klms.container import Array, Arrays
from klms.errors import CorruptMessage
from klms.exchange.model import DTypes, Model
from klms.exchange.request import CompressionRequest, Terms
from klms.frame import Frame, Kind

_HEAD = struct.Struct("<BfI")
_LOOKS_LIKE_UPDATES = 1
OVERHEAD = frame.OVERHEAD + _HEAD.size
"""Bytes of a reply in addition to its head (`model.py`) and its message."""
_SMALL, _FAR = 0.25, 0.8  # squared norms relative to the squared norm of the received arrays; see `looks_like_updates`


@dataclass(frozen=True)
class Expected:
    """What the server knows about the answer that one request asked for."""

    frame: Frame
    request: CompressionRequest
    terms: Terms
    model: Model
    """The arrays that the client received; an update is the trained arrays minus these."""
    coder: tuple[Compressor, SideLearner] | None
    """Compressor and learner for the model; None if the model has nothing to compress."""
    bits: float | None
    """Bits per parameter that were asked for; None if the scheme's rate cannot be set."""
    state: int | None
    """Number of the state that the request led to; None if the request had no broadcast."""


@dataclass(frozen=True)
class Reply:
    """An answer whose frame and head are sound; its message is not decoded yet."""

    expected: Expected
    nbytes: int
    dtypes: DTypes = field(default_factory=dict)
    """Types of the arrays in the reply; the client may have left out some of the model's arrays."""
    exact: dict[str, Array] = field(default_factory=dict)
    """Arrays of the reply that are not in its message."""
    message: bytes = b""
    norm: float = 0.0
    """Norm of the update, as reported by the client."""
    looks_like_updates: bool = False

    @classmethod
    def of(cls, received: Frame, expected: Expected, nbytes: int) -> "Reply":
        """Read everything but the message of the scheme."""
        received.check_belongs_to(expected.frame)
        body = received.body
        if not body:
            return cls(expected, nbytes)
        if len(body) < _HEAD.size:
            raise CorruptMessage("the reply is cut off")
        flags, norm, length = _HEAD.unpack_from(body)
        end = _HEAD.size + length
        if flags & ~_LOOKS_LIKE_UPDATES or len(body) < end or not 0 <= norm < math.inf:
            raise CorruptMessage("the reply is cut off, or of a kind that this release does not know")
        dtypes, exact = expected.model.read_head(body[_HEAD.size : end])
        return cls(expected, nbytes, dtypes, exact, body[end:], norm, bool(flags))

    @cached_property
    def model(self) -> Model:
        """The part of the model that the reply updates."""
        return self.expected.model.only(self.dtypes)

    @property
    def round(self) -> int:
        """Round of the request that the reply answers."""
        return self.expected.frame.first

    def decode(self) -> Decoded:
        """Return the update of the compressed arrays."""
        if not self.model.layout.d:
            if self.message:
                raise CorruptMessage("the reply has bytes after the arrays")
            return Decoded(np.zeros(0, dtype=np.float32))
        request, received = self.expected.request, self.expected.frame
        compressor, _ = self._coder(self.model)
        return compressor.decode(self.message, request.side, key=request.key(received.first, received.second))

    def learn(self, decoded: Decoded) -> None:
        """Pass the decoded update to the learner of the next side information."""
        if self.model.layout.d:
            self._coder(self.model)[1].add(decoded)

    def arrays(self, update: Vector, later: Arrays | None = None) -> dict[str, Array]:
        """Return the arrays that the client trained, given its decoded update.

        Given the arrays of a `later` model, add the update to these instead of the arrays that the client received.
        """
        model = self.model
        if later is not None:
            model = replace(model, arrays={name: later.get(name, array) for name, array in model.arrays.items()})
        return model.apply(update, self.dtypes, self.exact) if self.dtypes else {}

    def _coder(self, model: Model) -> tuple[Compressor, SideLearner]:
        """Return the compressor and the learner for the reply.

        They are those of the whole model or, if the reply has only some of the arrays, a compressor for these arrays
        and a learner that leaves the side information unchanged.
        """
        if model is self.expected.model and self.expected.coder is not None:
            return self.expected.coder
        if self.expected.request.needs_whole_model:
            raise CorruptMessage("the reply leaves arrays out, which this scheme does not support")
        return self.expected.request.compressor(model.layout, None), SideLearner({})


def write_reply(
    asked: Frame, head: bytes = b"", message: bytes = b"", *, norm: float = 0.0, suspicious: bool = False
) -> bytes:
    """Return the answer to a request, given the request's frame."""
    body = b""
    if head:
        flags = _LOOKS_LIKE_UPDATES if suspicious else 0
        body = b"".join([_HEAD.pack(flags, norm, len(head)), head, message])
    return Frame(Kind.REPLY, asked.first, asked.second, asked.digest, body).to_bytes()


def looks_like_updates(received: Arrays, trained: Mapping[str, Array], update: Vector, names: tuple[str, ...]) -> bool:
    """Return whether `trained` looks like differences, not weights.

    Differences have a much smaller norm than `received`, and their distance from `received` is large.
    """
    before = sum(_square(received[name]) for name in names)
    after = sum(_square(trained[name]) for name in names)
    return before > 0 and after < _SMALL * before and float(np.dot(update, update)) > _FAR * before


def _square(array: Array) -> float:
    flat = array.reshape(-1).astype(np.float32, copy=False)
    return float(np.dot(flat, flat))
