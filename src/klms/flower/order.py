"""What the server asks of a client besides training: a `ConfigRecord` that travels with the round."""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TypeVar

import numpy as np

from klms.codec import SharedKey
from klms.compressors.base import Compressor, Side
from klms.compressors.layout import Layout
from klms.compressors.schemes import SCHEMES, SchemeSettings

RECORD = "klms"
"""The name of our record, on the way down and on the way up."""
PAYLOAD = "payload"
VERSION = 1

T = TypeVar("T")
Value = str | int | float | bool | bytes


@dataclass(frozen=True)
class Order:
    """Encode the update of this round with this scheme."""

    scheme: str
    settings: SchemeSettings
    seed: int
    round: int
    """Absolute: it does not begin anew when the server does."""
    client: int
    """Which of the round's messages this is."""
    small: int
    feedback: bool
    """Whether clients keep what the scheme lost, and add it to their next update."""
    kept: tuple[str, ...] = ()
    """Arrays that pass as they are though they do not look it; see `Model`."""
    side: Side = field(default_factory=dict)

    @property
    def key(self) -> SharedKey:
        """Of the client's message."""
        return SharedKey(self.seed, self.round, self.client)

    def compressor(self, layout: Layout, threads: int | None) -> Compressor:
        """The scheme for a model."""
        return SCHEMES[self.scheme](layout, self.settings, threads)

    def agreed(self) -> Iterator[bytes | memoryview]:
        """What both sides must hold alike besides the model, for a fingerprint."""
        yield f"{self.scheme}|{sorted(asdict(self.settings).items())}|{self.seed}|{self.small}|{self.kept}".encode()
        for name in sorted(self.side):
            yield f"|{name}|".encode()
            yield np.ascontiguousarray(self.side[name]).reshape(-1).view(np.uint8).data

    def values(self) -> dict[str, Value]:
        """As scalars, for a record."""
        return {
            "version": VERSION,
            "scheme": self.scheme,
            "seed": self.seed,
            "round": self.round,
            "client": self.client,
            "small": self.small,
            "feedback": self.feedback,
            "kept": json.dumps(self.kept),
            "side": _pack(self.side),
            **{f"settings.{name}": value for name, value in asdict(self.settings).items()},
        }

    @classmethod
    def read(cls, values: Mapping[str, object]) -> "Order":
        """Undo `values`; a `ValueError` says what is wrong with them."""
        version = _typed(values, "version", int)
        if version != VERSION:
            raise ValueError(f"the server speaks version {version} of klms's protocol, this release {VERSION}")
        scheme = _typed(values, "scheme", str)
        if scheme not in SCHEMES:
            raise ValueError(f"the server asks for scheme {scheme!r}, which this release does not have")
        defaults = SchemeSettings()
        settings = {
            f.name: _typed(values, f"settings.{f.name}", type(getattr(defaults, f.name)))
            for f in fields(SchemeSettings)
        }
        return cls(
            scheme,
            SchemeSettings(**settings),
            seed=_typed(values, "seed", int),
            round=_typed(values, "round", int),
            client=_typed(values, "client", int),
            small=_typed(values, "small", int),
            feedback=_typed(values, "feedback", bool),
            kept=tuple(str(name) for name in json.loads(_typed(values, "kept", str))),
            side=_unpack(_typed(values, "side", bytes)),
        )


def _typed(values: Mapping[str, object], name: str, kind: type[T]) -> T:
    value = values.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"the server's order has {value!r} for {name}, where {kind.__name__} must be")
    return value


def _pack(side: Side) -> bytes:
    if not side:
        return b""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(side))
    return buffer.getvalue()


def _unpack(data: bytes) -> Side:
    if not data:
        return {}
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"the side information cannot be read: {error}") from error
