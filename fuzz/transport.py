"""What travels between server and clients around the messages."""

import json
import zlib
from contextlib import suppress

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict

from fuzz.target import Target, sealed, small_state
from klms.compressors.schemes import SCHEMES
from klms.exchange.broadcast import Broadcast
from klms.engine.snapshot import read_snapshot, write_snapshot
from klms.errors import KLMSError
from klms.flower import downlink
from klms.exchange.frame import ARRAYS, MessageFrame, read_frame
from klms.exchange.model import Model
from klms.exchange.policy import BEST, CompressionPolicy
from klms.exchange.request import CompressionRequest
from klms.exchange.sealing import ServerKey, seal
from klms.methods.state import State

_MODEL = {"w": np.ones((40, 30), dtype=np.float32), "b": np.ones(5, dtype=np.float32), "n": np.array(3)}
_STEPS = downlink.Steps(1, 4096, frozenset("n"), frozenset(), 0, threads=1)
_KEY = ServerKey()
_STATE = small_state(5000)


def _broadcast_seeds() -> list[bytes]:
    steps = Broadcast(3, bytes(8), 1, steps=(b"one", b"two")).to_bytes()
    return [steps, Broadcast(3, bytes(8), 3, snapshot=b"state").to_bytes()]


def _frame(data: bytes) -> None:
    if len(data) >= 28:
        length = int.from_bytes(data[20:24], "little")
        data = data[:24] + zlib.crc32(data[28 : 28 + length], zlib.crc32(data[:24])).to_bytes(4, "little") + data[28:]
    _, head, _ = read_frame(data)
    for model in _models():
        with suppress(KLMSError):
            model.read_head(head)


def _models() -> tuple[Model, Model]:
    return Model(_MODEL), Model(_MODEL, small=0, coarse=frozenset("b"))


def _frame_seeds() -> list[bytes]:
    heads = [model.write_head(_MODEL, np.random.default_rng(0)) for model in _models()]
    return [MessageFrame(ARRAYS, 2, 1, bytes(8)).write(b"message", head) for head in heads]


def _request(data: bytes) -> None:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(values, dict):
        if isinstance(values.get("side"), str):
            values["side"] = values["side"].encode("latin-1", errors="replace")
        CompressionRequest.read(values).compressor(Model(_MODEL).layout, 1)


def _request_seeds() -> list[bytes]:
    scheme = SCHEMES["qsgd-klms"]
    request = CompressionRequest(scheme.name, scheme.settings(), 1, 2, 3, 4096, ("n",), {"counts": np.arange(4)})
    values = {key: v.decode("latin-1") if isinstance(v, bytes) else v for key, v in request.values().items()}
    return [json.dumps(values).encode()]


def _model_broadcast(data: bytes) -> None:
    """A broadcast of `Compressed` at a client that holds nothing yet."""
    context = Context(1, 1, {}, RecordDict(), {})
    record = ConfigRecord({"broadcast": sealed(data), "chain": _STEPS.seed, "agreed": _STEPS.agreed()})
    downlink.receive(record, context, 1)


def _model_broadcast_seeds() -> list[bytes]:
    policy = CompressionPolicy.of(BEST, 2.0, {})
    sent = downlink.ModelDownlink(policy, _STEPS, first=2.0)
    sent.advance(downlink._record(_MODEL))
    sent.held[1] = 0
    return [sent.message(1), sent.message(2)]


TARGETS = {
    "broadcast": Target(lambda data: Broadcast.from_bytes(sealed(data)), _broadcast_seeds),
    "snapshot": Target(lambda data: read_snapshot(data, _STATE), lambda: [write_snapshot(_STATE)]),
    "state": Target(State.from_bytes, lambda: [small_state().to_bytes(private=True)]),
    "frame": Target(_frame, _frame_seeds),
    "request": Target(_request, _request_seeds),
    "model-broadcast": Target(_model_broadcast, _model_broadcast_seeds),
    "sealed": Target(_KEY.open, lambda: [seal(b"payload", _KEY.public)]),
}
