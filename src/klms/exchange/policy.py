"""The scheme that compresses an update, and its rate: the user's request, fitted to the model."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from klms.codec import SharedKey
from klms.compressors import grouped
from klms.compressors.arguments import number
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.errors import InvalidArgument
from klms.exchange.model import Model
from klms.exchange.reply import OVERHEAD
from klms.exchange.request import Group
from klms.numerics.checks import check_name

log = logging.getLogger("klms")

AUTO = "auto"
DEFAULT_BITS = 1.0
BEST = "trellis"  # what `auto` means: the unbiased scheme with the smallest error at every rate in `klms bench mean`
UNCOMPRESSED = 32.0
"""Bits per parameter of the arrays themselves."""
_PRECISE = {UNCOMPRESSED: "float32", 16.0: "float16"}  # schemes with less error than `BEST` at these bits and above
_TINY = 1024  # parameters: four kilobytes are not worth a scheme
_LEAST_RATE = 0.005
_MOST_FITTED = 1 << 22  # maximum number of entries of the vector on which rates are tried

ArrayBits = Mapping[str, float] | Callable[[str], float | None]
"""Bits per parameter by array: patterns of names, or a function of the name; None stands for the common rate."""


class Plan(NamedTuple):
    """How the vector of a model is coded: by one scheme, except for groups of arrays with rates of their own."""

    scheme: Scheme[Settings]
    settings: Settings
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True)
class CompressionPolicy:
    """The scheme that the user named, or `auto`, with its rate and settings."""

    scheme: str
    bits: float | None
    """Bits per parameter of the whole payload; None for a scheme whose rate cannot be set."""
    values: Mapping[str, object]
    array_bits: ArrayBits | None = None
    overhead: int = OVERHEAD
    """Bytes of a payload in addition to its head (`model.py`) and its message."""
    heads: bool = True
    """Whether `bits` include the headers of payloads; if not, they are the bits of the coded vector alone."""
    _plans: dict[tuple[Layout, int], Plan] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        scheme: str,
        bits: float | None,
        values: Mapping[str, object],
        array_bits: ArrayBits | None = None,
        overhead: int = OVERHEAD,
    ) -> "CompressionPolicy":
        """Return the policy that the user asked for; raise an error if it is invalid."""
        check_name("scheme", scheme, [AUTO, *UPDATE_SCHEMES])
        chosen = UPDATE_SCHEMES[BEST if scheme == AUTO else scheme]
        if chosen.takes_rate:
            if "rate" in values:
                raise InvalidArgument("use bits_per_parameter, which counts the whole payload, instead of rate")
            bits = _checked(scheme, DEFAULT_BITS if bits is None else bits, "bits_per_parameter")
        elif bits is not None or array_bits is not None:
            rated = " or ".join(name for name, other in UPDATE_SCHEMES.items() if other.takes_rate)
            raise InvalidArgument(f"the rate of {scheme} cannot be set: omit bits_per_parameter, or use {rated}")
        if isinstance(array_bits, Mapping):
            for pattern, own in array_bits.items():
                _checked(scheme, own, f"array_bits of {pattern}")
        if scheme == AUTO and values:
            raise InvalidArgument(f"{', '.join(values)}: settings belong to a scheme; name one with scheme=")
        for name in values:
            check_name(f"setting of {scheme}", name, chosen.settings.model_fields)
        chosen.settings.checked(values)
        return cls(scheme, bits, dict(values), array_bits, overhead)

    @classmethod
    def at(cls, rate: float) -> "CompressionPolicy":
        """Return the policy that spends `rate` bits on each parameter of the vector, with the scheme `BEST`."""
        return cls(BEST, rate, {}, heads=False)

    def for_model(self, model: Model) -> Plan:
        """Return the schemes and their settings, chosen so that the whole payload has the wanted bits per parameter."""
        if not self.heads and model.layout.d and model.size >= _TINY:
            chosen = UPDATE_SCHEMES[self.scheme]
            return Plan(chosen, chosen.settings.checked({"rate": self.bits}))
        if self.bits is None:
            chosen = UPDATE_SCHEMES[self.scheme]
            return Plan(chosen, chosen.settings.checked(self.values))
        which = (model.layout, model.head_bytes)
        if which not in self._plans:
            self._plans[which] = self._plan(model, self.bits)
        return self._plans[which]

    def _plan(self, model: Model, bits: float) -> Plan:
        layout = model.layout
        if layout.d == 0 or model.size < _TINY:
            log.warning("klms: nothing is compressed: %s", _why_not(model))
            return Plan(UPDATE_SCHEMES["float32"], UPDATE_SCHEMES["float32"].settings())
        room = bits * model.size - 8 * (self.overhead + model.head_bytes)
        rest, groups = dict(zip(layout.names, layout.sizes, strict=True)), []
        for own_bits, names in self._with_own_bits(layout).items():
            own = layout.only(names)
            fitted = self._fit(own, own_bits, own_bits * own.d)
            groups.append(Group(fitted.scheme.name, fitted.settings, own.names))
            room -= fitted.bits + 8 * grouped.OVERHEAD
            rest = {name: size for name, size in rest.items() if name not in names}
        if not rest and room >= 0:
            return Plan(UPDATE_SCHEMES[groups[0].scheme], groups[0].settings, tuple(groups))
        left = room - 8 * grouped.OVERHEAD * bool(groups)
        try:
            main = self._fit(layout.only(rest), bits, left)
        except _NoRoom as problem:
            full = f"{bits:g} bits per parameter leave no room beyond arrays that are sent unchanged or at other rates"
            raise InvalidArgument(f"{full}: use at least {bits + problem.bits / model.size:.3g}") from problem
        log.info(
            "klms: %s at %.3g bits for each of %d parameters; expect a squared error of %.2g times the squared norm of "
            "the update for one client, and of %.2g divided by the number of clients for the average (less where "
            "layers differ)",
            main.scheme.name,
            main.bits / sum(rest.values()),
            sum(rest.values()),
            main.error,
            main.error,
        )
        return Plan(main.scheme, main.settings, tuple(groups))

    def _with_own_bits(self, layout: Layout) -> dict[float, list[str]]:
        """Return the names of the arrays that have a rate of their own, grouped by that rate."""
        found: dict[float, list[str]] = {}
        asked = self.array_bits
        for name in layout.names if asked is not None else ():
            own = asked(name) if callable(asked) else _matching(asked or {}, name)
            if own is not None:
                found.setdefault(_checked(self.scheme, own, f"array_bits of {name}"), []).append(name)
        return found

    def _fit(self, layout: Layout, bits: float, room: float) -> "_Fitted":
        """Return the scheme for `bits` bits per parameter, at the rate at which a message fits into `room` bits."""
        scheme: Scheme[Settings] = UPDATE_SCHEMES[_best_at(bits) if self.scheme == AUTO else self.scheme]
        if not layout.d or (scheme.takes_rate and room < _LEAST_RATE * layout.d):
            raise _NoRoom(_LEAST_RATE * layout.d - room)
        tried = _sample(layout)
        update, rate = np.random.default_rng(0).standard_normal(tried.d, dtype=np.float32), room / layout.d

        def settings() -> Settings:
            rated = {"rate": min(max(rate, _LEAST_RATE), scheme.max_rate)} if scheme.takes_rate else {}
            return scheme.settings.checked({**self.values, **rated})

        for _ in range(2):  # headers, scales and the padding of rotations come on top of the rate: measure how much
            compressor, rng, key = scheme.make(tried, settings(), None), np.random.default_rng(0), SharedKey(0, 0, 0)
            message = compressor.encode(update, {}, key=key, rng=rng)
            sent = 8 * len(message) / tried.d
            rate -= max(0.0, sent - room / layout.d) * 1.01
        if scheme.takes_rate and rate < _LEAST_RATE:
            raise _NoRoom((_LEAST_RATE - rate) * layout.d)
        error = float(np.sum((compressor.decode(message, {}, key=key).vector - update) ** 2) / tried.d)
        return _Fitted(scheme, settings(), sent * layout.d, error)


class _Fitted(NamedTuple):
    """A scheme with its settings, the number of bits of its message, and its squared error relative to the update."""

    scheme: Scheme[Settings]
    settings: Settings
    bits: float
    error: float


class _NoRoom(Exception):
    """A message does not fit: it needs `bits` more bits."""

    def __init__(self, bits: float) -> None:
        self.bits = bits


def _why_not(model: Model) -> str:
    if model.size < _TINY:
        return f"the model has only {model.size} parameters"
    return f"all of the {model.size} parameters are integers, or in arrays that are sent unchanged"


def _checked(scheme: str, bits: float, name: str) -> float:
    most = UNCOMPRESSED if scheme == AUTO else UPDATE_SCHEMES[scheme].max_rate
    if not 0 < number(name, bits) <= most:
        raise InvalidArgument(f"{name} must be above 0 and at most {most:g}, got {bits}")
    return float(bits)


def _best_at(bits: float) -> str:
    """Return the scheme with the smallest error at `bits` bits per parameter or fewer."""
    return next((name for least, name in _PRECISE.items() if bits >= least), BEST)


def _matching(patterns: Mapping[str, float], name: str) -> float | None:
    return next((bits for pattern, bits in patterns.items() if fnmatchcase(name, pattern)), None)


def _sample(layout: Layout) -> Layout:
    """Return a layout of limited size with messages of about the same bits per entry as those of `layout`."""
    sizes, room = [], _MOST_FITTED
    if layout.d <= room:
        return layout
    for size in layout.sizes:
        sizes.append(min(size, room))
        room -= sizes[-1]
        if not room:
            break
    return Layout(layout.names[: len(sizes)], tuple((size,) for size in sizes))
