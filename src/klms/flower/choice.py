"""Which scheme, and at which rate: what a user of Flower says, and what klms makes of it."""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
from pydantic import ValidationError

from klms.codec import SharedKey
from klms.compressors.layout import Layout
from klms.compressors.schemes import SCHEMES, SchemeSettings
from klms.flower.frame import OVERHEAD
from klms.flower.model import Model
from klms.methods.config import RunConfig

log = logging.getLogger("flwr")

AUTO = "auto"
RATED = {"eden": 8.0, "klms-rotated": 4.0}
"""Schemes that take any rate, and their highest."""
LENGTHLESS = ("signsgd", "signsgd-stochastic", "signsgd-klms")
"""Schemes that send directions alone, so that the server must say how far to go."""

DEFAULT_BITS = 1.0
_BLOCK_BITS = 10  # of klms-rotated, unless said: what the bench was run with
_ROTATED_BELOW = 2.0  # bits
_ROTATED_SIZE = 250_000  # parameters: encoding takes 2 microseconds each, EDEN 25 nanoseconds
_TINY = 1024  # parameters: four kilobytes are not worth a scheme
_LEAST_RATE = 0.005


@dataclass(frozen=True)
class Choice:
    """The scheme as the user named it, or `auto`."""

    scheme: str
    bits: float | None
    """Bits per parameter of the whole payload; None for a scheme that has no rate to set."""
    settings: SchemeSettings
    _fitted: dict[tuple[Layout, int], tuple[str, SchemeSettings]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, scheme: str, bits: float | None, settings: Mapping[str, object]) -> "Choice":
        """Check what was said."""
        _known("scheme", scheme, [AUTO, *SCHEMES])
        names = [f.name for f in fields(SchemeSettings)]
        for name in settings:
            _known("setting", name, names)
        if scheme in (AUTO, *RATED):
            if "rate" in settings:
                raise ValueError("say bits_per_parameter, of the whole payload, instead of rate")
            bits, most = DEFAULT_BITS if bits is None else bits, RATED.get(scheme, 8.0)
            if not 0 < bits <= most:
                raise ValueError(f"bits_per_parameter must be above 0 and at most {most:g}, got {bits}")
            settings = {"bits": _BLOCK_BITS, **settings}
        elif bits is not None:
            raise ValueError(f"{scheme} has no rate to set: leave bits_per_parameter out, or take {' or '.join(RATED)}")
        try:
            checked = RunConfig.model_validate({"method": scheme, **settings})
        except ValidationError as error:
            reasons = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ValueError(f"{scheme}: {reasons}") from error
        return cls(scheme, bits, SchemeSettings(**{name: getattr(checked, name) for name in names}))

    def for_model(self, model: Model) -> tuple[str, SchemeSettings]:
        """The scheme and its settings for a model, so that the whole payload keeps to the bits.

        `auto` is the scheme of least error in `klms bench mean`: `klms-rotated` below two bits, `eden` from there on;
        and `eden` for large models, where searching candidates would take seconds.
        """
        if self.bits is None:
            return self.scheme, self.settings
        which = (model.layout, model.head_bytes)
        if which not in self._fitted:
            self._fitted[which] = self._fit(model, self.bits)
        return self._fitted[which]

    def _fit(self, model: Model, bits: float) -> tuple[str, SchemeSettings]:
        d = model.layout.d
        if d == 0 or model.size < _TINY:
            log.warning("klms: of %d parameters, %d in large arrays, all pass as they are", model.size, d)
            return "float32", self.settings
        room = bits * model.size - 8 * (OVERHEAD + model.head_bytes)
        scheme = self.scheme
        if scheme == AUTO:
            scheme = "klms-rotated" if room / d < _ROTATED_BELOW and d <= _ROTATED_SIZE else "eden"
        rate, message = room / d, np.random.default_rng(0).standard_normal(d).astype(np.float32)
        for _ in range(2):  # headers, scales and the padding of rotations come on top of the rate: look how much
            if rate < _LEAST_RATE:
                least = bits + (_LEAST_RATE - rate) * d / model.size
                raise ValueError(
                    f"{bits:g} bits per parameter leave no room beside headers and the arrays that pass as they are: "
                    f"say at least {least:.3g}"
                )
            settings = replace(self.settings, rate=min(rate, RATED[scheme]))
            compressor = SCHEMES[scheme](model.layout, settings, None)
            made = compressor.encode(message, {}, key=SharedKey(0, 0, 0), rng=np.random.default_rng(0))
            rate -= max(0.0, 8 * len(made) - room) / d * 1.01
        return scheme, replace(self.settings, rate=min(max(rate, _LEAST_RATE), RATED[scheme]))


def _known(what: str, name: str, names: list[str]) -> None:
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise ValueError(f"there is no {what} {name!r}; {hint}")
