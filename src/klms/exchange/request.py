"""The server's request to a client: how to code the answer, and the bytes that lead to the model.

The terms of a request (scheme, settings, seed, which arrays are sent unchanged) stay the same for many rounds, except
for the rate. A client keeps the terms, so that a request holds only those that have changed since the last request that
the server knows to have arrived.

The body of the frame: flags (u8: 1 if all terms are there), the length of the terms (u32), the terms as JSON (deflated
if all are there), the length of the side information (u32), the side information (`container.py`), and the broadcast,
which is empty if the model travels alongside the request.
"""

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from klms.codec import SharedKey
from klms.compressors.base import Compressor, Side
from klms.compressors.grouped import Grouped
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.container import read_arrays, write_arrays
from klms.errors import CorruptMessage, InvalidArgument, OutOfSync, UnsupportedMessage
from klms.frame import fingerprint

VERSION = 9
_WHOLE = 1
_HEAD = struct.Struct("<BI")
_LENGTH = struct.Struct("<I")
_MOST_TERMS = 1 << 24  # bytes of JSON
_MOST_GROUPS = 256

T = TypeVar("T")
Terms = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """Arrays that are coded separately from the others, with a scheme and settings of their own."""

    scheme: str
    settings: Settings
    arrays: tuple[str, ...]

    def compressor(self, layout: Layout, threads: int | None) -> Compressor:
        return UPDATE_SCHEMES[self.scheme].make(layout, self.settings, threads)


@dataclass(frozen=True)
class CompressionRequest:
    """Asks for an answer that is encoded with this scheme."""

    scheme: str
    settings: Settings
    seed: int
    sent_unchanged: tuple[str, ...] = ()
    """Names of arrays that are not compressed even if they are floating-point; see `Model`."""
    coarse: tuple[str, ...] = ()
    """Names of arrays that are sent as differences of 8 bits."""
    groups: tuple[Group, ...] = ()
    """Arrays with rates of their own; the others are coded together with `scheme`."""
    server: bytes = b""
    """Public key with which to seal the answer; empty if answers are not sealed."""
    updates: bool = False
    """Whether clients answer with differences instead of trained arrays."""
    side: Side = field(default_factory=dict)

    def key(self, round_: int, number: int) -> SharedKey:
        return SharedKey(self.seed, round_, number)

    @property
    def error_feedback(self) -> bool:
        """Whether clients add the residual to their next update."""
        return UPDATE_SCHEMES[self.scheme].needs_error_feedback

    @property
    def needs_whole_model(self) -> bool:
        """Whether the scheme keeps state of the whole vector between rounds, so that a part cannot be sent alone."""
        scheme = UPDATE_SCHEMES[self.scheme]
        return scheme.needs_error_feedback or scheme.needs_side_information

    def compressor(self, layout: Layout, threads: int | None) -> Compressor:
        """Return the compressor for vectors with this layout: that of the model, or of a part of the model."""
        grouped = {name for group in self.groups for name in group.arrays}
        rest = Group(self.scheme, self.settings, tuple(name for name in layout.names if name not in grouped))
        if not self.groups:
            return rest.compressor(layout, threads)
        parts = [(group, layout.only(group.arrays)) for group in (rest, *self.groups)]
        return Grouped(layout, tuple((own.names, group.compressor(own, threads)) for group, own in parts if own.d))

    def terms(self) -> dict[str, Any]:
        """Return everything but the side information, ready for JSON."""
        return {
            "version": VERSION,
            "scheme": self.scheme,
            "settings": self.settings.model_dump(mode="json", exclude={"rate"}),
            "rate": getattr(self.settings, "rate", None),
            "seed": self.seed,
            "sent_unchanged": list(self.sent_unchanged),
            "coarse": list(self.coarse),
            "groups": [[one.scheme, one.settings.model_dump(mode="json"), list(one.arrays)] for one in self.groups],
            "server": self.server.hex(),
            "updates": self.updates,
        }

    @classmethod
    def read(cls, terms: Terms, side: Side) -> "CompressionRequest":
        """Undo `terms`; raise a `KLMSError` if they are invalid."""
        version = _typed(terms, "version", int)
        if version != VERSION:
            raise UnsupportedMessage(f"the server uses version {version} of the protocol, this release {VERSION}")
        name = _typed(terms, "scheme", str)
        rate = {} if terms.get("rate") is None else {"rate": terms["rate"]}
        return cls(
            name,
            _scheme(name).settings.checked({**_typed(terms, "settings", dict), **rate}),
            _typed(terms, "seed", int),
            sent_unchanged=_names(terms, "sent_unchanged"),
            coarse=_names(terms, "coarse"),
            groups=_groups(_typed(terms, "groups", list)),
            server=_hex(_typed(terms, "server", str)),
            updates=_typed(terms, "updates", bool),
            side=side,
        )


@dataclass(frozen=True)
class RequestBody:
    """The body of a request."""

    terms: Terms
    """All terms, or those that changed."""
    whole: bool
    side: Side
    broadcast: bytes
    """Leads the client to the model; empty if the model travels alongside the request."""

    def to_bytes(self) -> bytes:
        text = json.dumps(self.terms, separators=(",", ":")).encode()
        text = zlib.compress(text) if self.whole else text
        side = write_arrays(self.side) if self.side else b""
        head = _HEAD.pack(_WHOLE if self.whole else 0, len(text))
        return b"".join([head, text, _LENGTH.pack(len(side)), side, self.broadcast])

    @classmethod
    def from_bytes(cls, body: bytes) -> "RequestBody":
        """Undo `to_bytes`; the broadcast is unchecked."""
        if len(body) < _HEAD.size:
            raise CorruptMessage("the request is cut off")
        flags, length = _HEAD.unpack_from(body)
        end = _HEAD.size + length
        start = end + _LENGTH.size
        if len(body) < start:
            raise CorruptMessage("the request is cut off")
        after = start + _LENGTH.unpack_from(body, end)[0]
        if flags not in (0, _WHOLE) or len(body) < after:
            raise CorruptMessage("the request is cut off, or of a kind that this release does not know")
        terms = _read_terms(body[_HEAD.size : end], bool(flags))
        side = read_arrays(body[start:after])[0] if after > start else {}
        return cls(terms, bool(flags), side, body[after:])

    def merged(self, held: Terms) -> dict[str, Any]:
        """Return all terms, given those that the client holds."""
        if self.whole:
            return dict(self.terms)
        if not held:
            raise OutOfSync("the request builds on terms that this client does not hold")
        return {**held, **self.terms}


def changed(terms: Terms, held: Terms) -> dict[str, Any]:
    """Return the terms that a client with the terms `held` lacks."""
    return {name: value for name, value in terms.items() if name not in held or held[name] != value}


def agreement(terms: Terms, side: Side, digests: Iterator[bytes]) -> bytes:
    """Return the fingerprint of everything that both sides must share: terms, side information and model."""
    parts: list[bytes | memoryview] = [json.dumps(terms, sort_keys=True).encode(), *digests]
    for name in sorted(side):
        parts.append(f"|{name}|".encode())
        parts.append(np.ascontiguousarray(side[name]).reshape(-1).view(np.uint8).data)
    return fingerprint(parts)


def _read_terms(text: bytes, whole: bool) -> dict[str, Any]:
    try:
        if whole:
            inflater = zlib.decompressobj()
            text = inflater.decompress(text, _MOST_TERMS)
            if not inflater.eof or inflater.unused_data:
                raise CorruptMessage("the terms of the request are cut off or too long")
        found = json.loads(text)
    except (ValueError, RecursionError, zlib.error) as error:
        raise CorruptMessage(f"the terms of the request cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CorruptMessage("the terms of the request are not a table")
    return found


def _typed(terms: Terms, name: str, kind: type[T]) -> T:
    value = terms.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidArgument(f"the server's request has {value!r} for {name}; it must be of type {kind.__name__}")
    return value


def _names(terms: Terms, name: str) -> tuple[str, ...]:
    found = _typed(terms, name, list)
    if not all(isinstance(one, str) for one in found):
        raise InvalidArgument(f"the server's request has {found!r} for {name}; it must be a list of names")
    return tuple(found)


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise InvalidArgument("the server's public key is not written in hexadecimal digits") from error


def _scheme(name: str) -> Scheme[Settings]:
    if name not in UPDATE_SCHEMES:
        raise UnsupportedMessage(f"the server asks for scheme {name!r}, which this release does not have")
    return UPDATE_SCHEMES[name]


def _groups(listed: list[Any]) -> tuple[Group, ...]:
    try:
        found = [(str(name), dict(values), tuple(map(str, arrays))) for name, values, arrays in listed]
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"the groups of arrays in the server's request cannot be read: {error}") from error
    named = [name for _, _, arrays in found for name in arrays]
    if len(found) > _MOST_GROUPS or len(set(named)) < len(named):
        raise InvalidArgument(f"the server's request has more than {_MOST_GROUPS} groups, or an array in two of them")
    return tuple(Group(name, _scheme(name).settings.checked(values), arrays) for name, values, arrays in found)
