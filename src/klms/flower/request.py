"""What the server asks of a client besides training: a `ConfigRecord` that travels with every round."""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from klms.codec import SharedKey
from klms.compressors.base import Compressor, Side
from klms.compressors.grouped import Grouped
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.errors import CorruptMessage, InvalidArgument, UnsupportedMessage
from klms.numerics.archive import read_arrays

RECORD = "klms"  # name of our record, in requests and in replies
PAYLOAD = "payload"
VERSION = 6
_SETTING = "settings."
_NUMBERS = ("seed", "round", "client", "small")

_MOST_GROUPS = 256
T = TypeVar("T")
Value = str | int | float | bool | bytes


@dataclass(frozen=True)
class Group:
    """Arrays that are coded apart from the others, with a scheme and settings of their own."""

    scheme: str
    settings: Settings
    arrays: tuple[str, ...]

    def compressor(self, layout: Layout, threads: int | None) -> Compressor:
        return UPDATE_SCHEMES[self.scheme].make(layout, self.settings, threads)


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
    groups: tuple[Group, ...] = ()
    """Arrays with rates of their own; the others are coded together with `scheme`."""
    server: bytes = b""
    """Public key to seal the payload with; empty if it is not sealed."""

    @property
    def key(self) -> SharedKey:
        return SharedKey(self.seed, self.round, self.client)

    @property
    def error_feedback(self) -> bool:
        """Whether clients add what a message lost to their next update."""
        return UPDATE_SCHEMES[self.scheme].needs_error_feedback

    @property
    def uses_history(self) -> bool:
        """Whether clients that hold the last step of the model may use it."""
        return UPDATE_SCHEMES[self.scheme].uses_history(self.settings)

    @property
    def needs_whole_model(self) -> bool:
        """Whether what is kept from round to round is of the whole vector, so that no part of it can be sent alone."""
        scheme = UPDATE_SCHEMES[self.scheme]
        return scheme.needs_error_feedback or scheme.needs_side_information

    def compressor(self, layout: Layout, threads: int | None) -> Compressor:
        """Return the compressor of a vector with this layout, be it the model's or a part of it."""
        grouped = {name for group in self.groups for name in group.arrays}
        rest = Group(self.scheme, self.settings, tuple(name for name in layout.names if name not in grouped))
        if not self.groups:
            return rest.compressor(layout, threads)
        parts = [(group, layout.only(group.arrays)) for group in (rest, *self.groups)]
        return Grouped(layout, tuple((own.names, group.compressor(own, threads)) for group, own in parts if own.d))

    def agreed(self) -> Iterator[bytes | memoryview]:
        """Yield everything besides the model that both sides must share, for a fingerprint."""
        yield f"{self.scheme}|{self.settings.model_dump_json()}|{self.seed}|{self.small}".encode()
        yield f"|{self.sent_unchanged}|{self.coarse}|{_written(self.groups)}".encode()
        for name in sorted(self.side):
            yield f"|{name}|".encode()
            yield np.ascontiguousarray(self.side[name]).reshape(-1).view(np.uint8).data

    def values(self) -> dict[str, Value]:
        return {
            "version": VERSION,
            **{name: getattr(self, name) for name in ("scheme", *_NUMBERS)},
            "sent_unchanged": json.dumps(self.sent_unchanged),
            "coarse": json.dumps(self.coarse),
            "groups": _written(self.groups),
            **({"side": _pack(self.side)} if self.side else {}),  # some mods of Flower do not take empty bytes
            **({"server": self.server} if self.server else {}),
            **{_SETTING + name: value for name, value in self.settings.model_dump(mode="json").items()},
        }

    @classmethod
    def read(cls, values: Mapping[str, object]) -> "CompressionRequest":
        """Undo `values`; a `KLMSError` says what is wrong with them."""
        version = _typed(values, "version", int)
        if version != VERSION:
            raise UnsupportedMessage(f"the server uses version {version} of the protocol, this release {VERSION}")
        name = _typed(values, "scheme", str)
        settings = {key.removeprefix(_SETTING): value for key, value in values.items() if key.startswith(_SETTING)}
        return cls(
            name,
            _scheme(name).settings.checked(settings),
            **{field: _typed(values, field, int) for field in _NUMBERS},
            sent_unchanged=_names(values, "sent_unchanged"),
            coarse=_names(values, "coarse"),
            groups=_groups(_typed(values, "groups", str)),
            side=_unpack(_typed(values, "side", bytes)) if "side" in values else {},
            server=_typed(values, "server", bytes) if "server" in values else b"",
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


def _scheme(name: str) -> Scheme[Settings]:
    if name not in UPDATE_SCHEMES:
        raise UnsupportedMessage(f"the server asks for scheme {name!r}, which this release does not have")
    return UPDATE_SCHEMES[name]


def _written(groups: tuple[Group, ...]) -> str:
    return json.dumps([[group.scheme, group.settings.model_dump(mode="json"), group.arrays] for group in groups])


def _groups(text: str) -> tuple[Group, ...]:
    try:
        found = [(str(name), dict(values), tuple(map(str, arrays))) for name, values, arrays in json.loads(text)]
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgument(f"the groups of arrays in the server's request cannot be read: {error}") from error
    named = [name for _, _, arrays in found for name in arrays]
    if len(found) > _MOST_GROUPS or len(set(named)) < len(named):
        raise InvalidArgument(f"the server's request has more than {_MOST_GROUPS} groups, or an array in two of them")
    return tuple(Group(name, _scheme(name).settings.checked(values), arrays) for name, values, arrays in found)


def _pack(side: Side) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(side))
    return buffer.getvalue()


def _unpack(data: bytes) -> Side:
    try:
        return read_arrays(io.BytesIO(data), len(data))  # `_pack` does not compress
    except CorruptMessage as error:
        raise InvalidArgument(f"the side information cannot be read: {error}") from error
