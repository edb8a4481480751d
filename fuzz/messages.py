"""Messages of the codec, of every scheme and of `klms.compress`."""

import json
import zlib
from contextlib import AbstractContextManager
from unittest.mock import patch

import numpy as np

import klms
from fuzz.target import Target, sealed
from klms import Bernoulli, Categorical, Gaussian, fixed_blocks
from klms.codec import message as wire
from klms.compressors.schemes import SCHEMES
from klms.frame import BODY
from klms.runs.inspection import fields
from tests.support.messages import example
from tests.support.round_trips import KEY, material, round_trip, small


class _AnyTag(bytes):
    """Equal to every agreement tag: to forge one takes the key, which a hostile client has."""

    def __ne__(self, other: object) -> bool:
        return False


def _with_any_tag() -> AbstractContextManager[object]:
    return patch.object(wire, "agreement_tag", lambda *agreed: _AnyTag())


def _sealed(data: bytes, start: int = 0) -> bytes:
    """The message that begins at `start` with a checksum that fits; version 2 of the envelope covers the key, too."""
    bound = data[start : start + 3] == b"KB\2"
    return sealed(data, start, zlib.crc32(KEY.to_bytes()) if bound else 0)


_I = np.arange(1, 21)
_TABLE = np.stack([_I, 90 - 2 * _I, _I], axis=1) / 90
_DISTRIBUTIONS = [Bernoulli(_I / 32), Categorical(_TABLE, [-1, 0, 1]), Gaussian(_I / 32, 1.0)]
_BY_FAMILY = {p.family: p for p in _DISTRIBUTIONS}


def _codec(data: bytes) -> None:
    message = _sealed(data)
    p = _BY_FAMILY[wire.inspect(message).family]
    with _with_any_tag():
        klms.Codec().decode(message, p, key=KEY, blocks=fixed_blocks(20, 5))


def _codec_seeds() -> list[bytes]:
    families = ("bernoulli", "categorical", "gaussian")
    return [
        example(family, send_blocks=send, scalars=(1.5,) * send, memory=memory)[0]
        for family in families
        for send in (False, True)
        for memory in (0, 3)
    ]


def _scheme(name: str) -> Target:
    compressor = small(name)
    _, side = material(name, compressor)

    def read(data: bytes) -> None:
        with _with_any_tag():
            compressor.decode(_sealed(data), side, key=KEY)

    return Target(read, lambda: [round_trip(name)[0]])


_HEAD = klms.compress(np.zeros(0), key=KEY)[:BODY]  # with the digest of the key


def _update(data: bytes) -> None:
    """A message of `klms.compress`; the message of the scheme in it ends four bytes before its frame does."""
    body = _HEAD + data[BODY:-4]
    inner = body.find(b"KB")
    message = _sealed(body, inner) if inner >= 0 else body
    klms.decompress(sealed(message + bytes(4)), key=KEY, max_bytes=1 << 16)


def _feedback(data: bytes) -> None:
    klms.ErrorFeedback.from_bytes(sealed(data))


def _feedback_seeds() -> list[bytes]:
    feedback = klms.ErrorFeedback()
    feedback.compress({"a": np.ones((20, 30), np.float32), "b": np.arange(5)}, key=KEY, rng=np.random.default_rng(0))
    return [feedback.to_bytes()]


def _update_seeds() -> list[bytes]:
    arrays = {"a": np.ones((20, 30), np.float32), "b": np.arange(5), "c": np.zeros(0), "d": np.ones(9, np.float16)}
    rng = np.random.default_rng(0)
    return [klms.compress(update, 2.0, key=KEY, rng=rng) for update in (arrays, np.ones(50))]


def _inspect(data: bytes) -> None:
    json.dumps(fields(klms.inspect(sealed(data))))


TARGETS = {
    "codec": Target(_codec, _codec_seeds),
    **{f"scheme-{name}": _scheme(name) for name in SCHEMES},
    "update": Target(_update, _update_seeds),
    "feedback": Target(_feedback, _feedback_seeds),
    "inspect": Target(_inspect, lambda: [*_codec_seeds()[:2], *_update_seeds(), round_trip("topk")[0]]),
}
