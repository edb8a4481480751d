"""What travels between server and clients around the messages."""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from fuzz.target import Target, sealed, small_state
from klms.compressors.schemes import SCHEMES
from klms.container import read_arrays, write_arrays
from klms.errors import KLMSError
from klms.exchange.broadcast import Broadcast
from klms.exchange.client import Client
from klms.exchange.held import Held, follow
from klms.exchange.model import Model
from klms.exchange.model_steps import ModelSteps
from klms.exchange.reply import Reply
from klms.exchange.request import CompressionRequest, RequestBody
from klms.exchange.sealing import ServerKey, seal
from klms.exchange.server import Server
from klms.frame import Frame, Kind
from klms.methods.state import State

_MODEL = {"w": np.ones((40, 30), dtype=np.float32), "b": np.ones(5, dtype=np.float32), "n": np.array(3)}
_STEPS = ModelSteps(1, frozenset("n"), frozenset(), 0, threads=1)
_KEY = ServerKey()


def _container_seeds() -> list[bytes]:
    return [
        write_arrays(_MODEL, {"number": 3}),
        write_arrays({"few": np.ones(5000), "more": np.arange(90)}, packed=True),
    ]


def _broadcast_seeds() -> list[bytes]:
    steps = Broadcast(3, bytes(8), 1, steps=(b"one", b"two")).to_bytes()
    return [steps, Broadcast(3, bytes(8), 3, snapshot=b"state").to_bytes()]


def _asked() -> tuple[Server, bytes, bytes]:
    """A server that waits for the answer to its first request, that request, and the answer."""
    server = Server(_MODEL, bits_per_parameter=2, seed=1)
    request = server.request("a")
    client = Client(seed=1)
    return server, request, client.reply(client.receive(request))


_EXPECTED = next(iter(_asked()[0]._sent["a"].expected.values()))


def _reply(data: bytes) -> None:
    """A reply, whatever round and model it claims to be of."""
    frame = Frame.from_bytes(sealed(data), Kind.REPLY)
    belonging = replace(_EXPECTED.frame, kind=Kind.REPLY, body=frame.body)
    for model in (_EXPECTED.model, Model(_MODEL), Model(_MODEL, coarse=frozenset("b"))):
        with suppress(KLMSError):
            Reply.of(belonging, replace(_EXPECTED, model=model), len(data)).decode()


def _client_state_seeds() -> list[bytes]:
    client = Client(seed=1)
    client.receive(Server(_MODEL, bits_per_parameter=2, seed=1).request("a"))
    return [client.state]


def _reply_seeds() -> list[bytes]:
    return [_asked()[2]]


def _request(data: bytes) -> None:
    body = RequestBody.from_bytes(data)
    CompressionRequest.read(body.merged({}), body.side).compressor(Model(_MODEL).layout, 1)


def _request_seeds() -> list[bytes]:
    scheme = SCHEMES["qsgd-klms"]
    request = CompressionRequest(scheme.name, scheme.settings(), 1, ("n",), side={"counts": np.arange(4)})
    return [RequestBody(request.terms(), True, request.side, b"").to_bytes()]


def _model_broadcast(data: bytes) -> None:
    """A broadcast at a client that holds nothing yet."""
    follow(_STEPS, sealed(data), 0, {})


def _model_broadcast_seeds() -> list[bytes]:
    state = _STEPS.take({}, 1, step := _STEPS.code({}, _MODEL, 1, 2.0))
    held = Held(state)
    held = replace(held, trail=held.trail.then(step, 1 << 20))
    sender = held.sender(_STEPS)
    return [sender.message(0), sender.message(None)]


TARGETS = {
    "container": Target(lambda data: read_arrays(data, 1 << 16), _container_seeds),
    "broadcast": Target(lambda data: Broadcast.from_bytes(sealed(data)), _broadcast_seeds),
    "state": Target(State.from_bytes, lambda: [small_state().to_bytes()]),
    "client": Target(lambda data: Client().receive(sealed(data)), lambda: [_asked()[1]]),
    "server-state": Target(
        lambda data: Server.restored(sealed(data), bits_per_parameter=2), lambda: [_asked()[0].state]
    ),
    "client-state": Target(lambda data: Client(sealed(data)), _client_state_seeds),
    "reply": Target(_reply, _reply_seeds),
    "request": Target(_request, _request_seeds),
    "model-broadcast": Target(_model_broadcast, _model_broadcast_seeds),
    "sealed": Target(_KEY.open, lambda: [seal(b"payload", _KEY.public)]),
}
