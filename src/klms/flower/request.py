"""What the server asks of a client besides training: a `ConfigRecord` that travels with every round."""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from klms.codec import SharedKey
from klms.compressors.base import Compressor, Side
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.errors import InvalidArgument, UnsupportedMessage

RECORD = "klms"  # name of our record, in requests and in replies
PAYLOAD = "payload"
VERSION = 3
_SETTING = "settings."
_NUMBERS = ("seed", "round", "client", "small")

T = TypeVar("T")
Value = str | int | float | bool | bytes


@dataclass(frozen=True)
class CompressionRequest:
    """Asks for this round's update, encoded with this scheme."""

    scheme: str
    settings: Settings
    seed: int
    round: int
    """Absolute number of the round: it does not start again when the server does."""
    client: int
    """Number of the message within the round."""
    small: int
    sent_unchanged: tuple[str, ...] = ()
    """Names of arrays that are not compressed although they look as if they should be; see `Model`."""
    side: Side = field(default_factory=dict)
    coarse: tuple[str, ...] = ()
    """Names of arrays that are sent by differences of 8 bits."""

    @property
    def key(self) -> SharedKey:
        return SharedKey(self.seed, self.round, self.client)

    @property
    def error_feedback(self) -> bool:
        """Whether clients add what a message lost to their next update."""
        return UPDATE_SCHEMES[self.scheme].needs_error_feedback

    def compressor(self, layout: Layout, threads: int | None) -> Compressor:
        return UPDATE_SCHEMES[self.scheme].make(layout, self.settings, threads)

    def agreed(self) -> Iterator[bytes | memoryview]:
        """Yield everything besides the model that both sides must share, for a fingerprint."""
        yield f"{self.scheme}|{self.settings.model_dump_json()}|{self.seed}|{self.small}".encode()
        yield f"|{self.sent_unchanged}|{self.coarse}".encode()
        for name in sorted(self.side):
            yield f"|{name}|".encode()
            yield np.ascontiguousarray(self.side[name]).reshape(-1).view(np.uint8).data

    def values(self) -> dict[str, Value]:
        return {
            "version": VERSION,
            **{name: getattr(self, name) for name in ("scheme", *_NUMBERS)},
            "sent_unchanged": json.dumps(self.sent_unchanged),
            "coarse": json.dumps(self.coarse),
            **({"side": _pack(self.side)} if self.side else {}),  # some mods of Flower do not take empty bytes
            **{_SETTING + name: value for name, value in self.settings.model_dump(mode="json").items()},
        }

    @classmethod
    def read(cls, values: Mapping[str, object]) -> "CompressionRequest":
        """Undo `values`; a `KLMSError` says what is wrong with them."""
        version = _typed(values, "version", int)
        if version != VERSION:
            raise UnsupportedMessage(f"the server uses version {version} of the protocol, this release {VERSION}")
        name = _typed(values, "scheme", str)
        scheme: Scheme[Settings] | None = UPDATE_SCHEMES.get(name)
        if scheme is None:
            raise UnsupportedMessage(f"the server asks for scheme {name!r}, which this release does not have")
        settings = {key.removeprefix(_SETTING): value for key, value in values.items() if key.startswith(_SETTING)}
        return cls(
            name,
            scheme.settings.checked(settings),
            **{field: _typed(values, field, int) for field in _NUMBERS},
            sent_unchanged=_names(values, "sent_unchanged"),
            coarse=_names(values, "coarse"),
            side=_unpack(_typed(values, "side", bytes)) if "side" in values else {},
        )


def _typed(values: Mapping[str, object], name: str, kind: type[T]) -> T:
    value = values.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidArgument(f"the server's request has {value!r} for {name}; it must be of type {kind.__name__}")
    return value


def _names(values: Mapping[str, object], name: str) -> tuple[str, ...]:
    text = _typed(values, name, str)
    try:
        return tuple(str(name) for name in json.loads(text))
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"the server's request has {text!r} for {name}; it must be a list") from error


def _pack(side: Side) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(side))
    return buffer.getvalue()


def _unpack(data: bytes) -> Side:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InvalidArgument(f"the side information cannot be read: {error}") from error
