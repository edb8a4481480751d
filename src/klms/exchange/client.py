"""The client's side of the exchange: bytes in, a model out; the trained model in, bytes out."""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from klms.compressors.arguments import message_bytes, named_arrays
from klms.compressors.base import Vector
from klms.compressors.trellis import product
from klms.container import Array, Arrays, grouped, joined, read_arrays, write_arrays
from klms.errors import CorruptMessage, InvalidArgument, KLMSError, OutOfSync
from klms.exchange.held import follow
from klms.exchange.model import Model
from klms.exchange.model_steps import ModelSteps
from klms.exchange.reply import looks_like_updates, write_reply
from klms.exchange.request import CompressionRequest, RequestBody, Terms, agreement
from klms.frame import Frame, Kind, digest_of
from klms.numerics.checks import integer

log = logging.getLogger("klms")
_LONG = 2.0  # seconds of encoding that are worth a log line
_STEPS = "steps"
"""Name of the term that says how steps of the model are coded."""


@dataclass
class _Pending:
    """The request that the client is to answer."""

    frame: Frame
    request: CompressionRequest
    received: Arrays


@dataclass(frozen=True)
class _Memory:
    """The state that a client keeps between rounds."""

    number: int = 0
    """Number of the model that the client holds; 0 for none."""
    arrays: Arrays = field(default_factory=dict)
    terms: Terms = field(default_factory=dict)
    lost: Vector | None = None
    """The residual, for schemes with error feedback."""

    def to_bytes(self) -> bytes:
        lost = {} if self.lost is None else {"vector": self.lost}
        kept = joined({"model": self.arrays, "lost": lost})
        body = write_arrays(kept, {"number": self.number, "terms": self.terms})
        return Frame(Kind.CLIENT, 0, 0, bytes(8), body).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "_Memory":
        """Undo `to_bytes`; a damaged state is dropped, and the server will send what is missing."""
        if not data:
            return cls()
        try:
            kept, meta = read_arrays(Frame.from_bytes(data, Kind.CLIENT).body)
            groups = grouped(kept, ("model", "lost"))
            return cls(int(meta["number"]), groups["model"], dict(meta["terms"]), groups["lost"].get("vector"))
        except (KLMSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            log.warning("klms: the state that this client kept cannot be read, and is dropped: %s", error)
            return cls()


class Client:
    """A client of a `Server`, over any transport.

    `state` is the `state` of an earlier `Client` on this machine; with it, the server sends only what changed since.
    Without a state, or with a damaged one, the client starts anew. `threads` is the number of threads of the codec.
    With a `seed`, the private randomness that some schemes need is reproducible.
    """

    def __init__(self, state: bytes = b"", *, threads: int = 1, seed: int | None = None) -> None:
        self.threads = threads
        self.seed = None if seed is None else integer("seed", seed, 0, 2**63 - 1)
        self._memory = _Memory.from_bytes(message_bytes("state", state))
        self._pending: _Pending | None = None

    @property
    def state(self) -> bytes:
        """State to give to the next `Client` on this machine: four bytes per parameter."""
        return self._memory.to_bytes()

    def receive(self, request: bytes, beside: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Return the arrays that a request leads to, as copies that the caller may change.

        `beside` are arrays that travelled alongside the request, if the server sent any. Raise `OutOfSync` if the
        request does not fit the state that this client holds; the error's `reply` goes back to the server, which then
        sends another request.
        """
        frame = Frame.from_bytes(message_bytes("request", request), Kind.REQUEST)
        extra = named_arrays("beside", beside or {})
        try:
            pending = self._follow(frame, extra)
        except OutOfSync as error:
            error.reply = Frame(Kind.LOST, frame.first, frame.second, frame.digest).to_bytes()
            raise
        self._pending = pending
        return {name: array.copy() for name, array in pending.received.items()}

    def _follow(self, frame: Frame, beside: Arrays) -> _Pending:
        body = RequestBody.from_bytes(frame.body)
        held = self._memory
        terms = body.merged(held.terms)
        number, arrays, lost, digests = held.number, held.arrays, held.lost, []
        if body.broadcast:
            steps = ModelSteps.read_agreed(terms.get(_STEPS), self.threads)
            if held.terms.get(_STEPS) != terms[_STEPS]:  # another server, which numbers its states anew
                number, arrays, lost = 0, {}, None
            number, arrays, digest = follow(steps, body.broadcast, number, arrays)
            digests.append(digest)
        received = {**(arrays if body.broadcast else {}), **beside}
        if beside:
            digests.append(digest_of(0, beside))
        if agreement(terms, body.side, iter(digests)) != frame.digest:
            raise OutOfSync("the server and this client disagree on the terms or on the arrays beside the request")
        request = CompressionRequest.read(terms, body.side)
        self._memory = _Memory(number, arrays, terms, lost)
        return _Pending(frame, request, received)

    @property
    def error_feedback(self) -> bool:
        """Whether replies change the state: the scheme adds the residual to the next update."""
        return self._memory.lost is not None

    @property
    def needs_whole_model(self) -> bool:
        """Whether the scheme of the request can only send the whole model, not some of its arrays."""
        return self._asked().request.needs_whole_model

    @property
    def sealed(self) -> bool:
        """Whether the request asks for replies that only the server can read."""
        return bool(self._asked().request.server)

    def check(self, trained: Mapping[str, Any]) -> None:
        """Raise an `InvalidArgument` unless these arrays can answer the request."""
        asked = self._asked()
        arrays = named_arrays("reply", trained)
        if unknown := arrays.keys() - asked.received.keys():
            raise InvalidArgument(f"these arrays were not received: {', '.join(sorted(unknown)[:5])}")
        model_of(asked.request, asked.received).check(arrays)

    def _asked(self) -> _Pending:
        if self._pending is None:
            raise InvalidArgument("there is no request to answer: call receive first, and reply once for each request")
        return self._pending

    def reply(self, trained: Mapping[str, Any]) -> bytes:
        """Return the answer to the last request, with all or some arrays of the model after training.

        Without arrays, the answer only tells the server that the request has arrived.
        """
        asked = self._asked()
        self.check(trained)
        reply = self._reply(asked, trained) if trained else write_reply(asked.frame)
        self._pending = None
        return reply

    def _reply(self, asked: _Pending, trained: Mapping[str, Any]) -> bytes:
        request, model = asked.request, model_of(asked.request, asked.received)
        arrays = named_arrays("reply", trained)
        sent = model.only(arrays)
        if sent is not model and request.needs_whole_model:
            raise InvalidArgument(f"with {request.scheme}, a reply must have all arrays that were received")
        update, encoded = sent.difference(arrays), b""
        rng = self._rng(asked.frame)
        suspicious = False
        norm = math.sqrt(product(update, update))
        if update.size:
            if not request.updates:
                suspicious = looks_like_updates(asked.received, arrays, update, sent.layout.names)
            encoded = self._encode(update, sent, request, asked.frame, rng)
        reply = write_reply(asked.frame, model.write_head(arrays, rng), encoded, norm=norm, suspicious=suspicious)
        if not request.server:
            return reply
        from klms.exchange.sealing import seal

        return seal(reply, request.server)

    def _encode(
        self, update: Vector, sent: Model, request: CompressionRequest, frame: Frame, rng: np.random.Generator
    ) -> bytes:
        start = time.perf_counter()
        compressor, key = request.compressor(sent.layout, self.threads), request.key(frame.first, frame.second)
        if request.error_feedback:
            lost = self._memory.lost
            if lost is not None and lost.shape == update.shape:
                update = update + lost.astype(np.float32)
        if lacking := compressor.start().keys() - request.side.keys():
            raise CorruptMessage(f"the request lacks side information for {request.scheme}: {', '.join(lacking)}")
        message = compressor.encode(update, request.side, key=key, rng=rng)
        if request.error_feedback:
            left = update - compressor.decode(message, request.side, key=key).vector
            self._memory = _Memory(self._memory.number, self._memory.arrays, self._memory.terms, left)
        if (seconds := time.perf_counter() - start) > _LONG:
            log.info("klms: %d parameters became %d bytes in %.1f seconds", update.size, len(message), seconds)
        return message

    def _rng(self, frame: Frame) -> np.random.Generator:
        return np.random.default_rng(None if self.seed is None else [self.seed, frame.first, frame.second])


def model_of(request: CompressionRequest, received: Arrays) -> Model:
    """Return the model to which an update is relative: the received arrays, or zeros if replies are updates."""
    if request.updates:
        received = {name: np.zeros(array.shape, dtype=array.dtype) for name, array in received.items()}
    return Model(received, frozenset(request.sent_unchanged), frozenset(request.coarse))
