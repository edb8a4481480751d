"""Which scheme, and at which rate: what a user of Flower says, and what klms makes of it."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from klms.compressors.schemes import SCHEMES, SchemeSettings
from klms.flower.frame import OVERHEAD
from klms.flower.model import Model

AUTO = "auto"
RATED = ("eden", "klms-rotated")
"""Schemes that take any rate."""
LENGTHLESS = ("signsgd", "signsgd-stochastic", "signsgd-klms")
"""Schemes that send directions alone, so that the server must say how far to go."""

DEFAULT_BITS = 1.0
_BLOCK_BITS = 10  # of klms-rotated, when it is chosen here
_ROTATED_UP_TO = 1.75  # bits: halfway between the last rate where the bench has it first, and the first where EDEN is
_ROTATED_SIZE = 250_000  # parameters: encoding takes 2 microseconds each, EDEN 25 nanoseconds
_SCHEME_BYTES = 80  # headers, checks and scales of a message
_LEAST_RATE = 0.005


@dataclass(frozen=True)
class Choice:
    """The scheme as the user named it, or `auto`."""

    scheme: str
    bits: float | None
    """Bits per parameter of the whole payload; None for a scheme that has no rate to set."""
    settings: SchemeSettings

    @classmethod
    def of(cls, scheme: str, bits: float | None, settings: Mapping[str, object]) -> "Choice":
        """Check what was said."""
        _known("scheme", scheme, [AUTO, *SCHEMES])
        for name in settings:
            _known("setting", name, [field.name for field in fields(SchemeSettings)])
        if scheme in (AUTO, *RATED):
            if "rate" in settings:
                raise ValueError("say bits_per_parameter, of the whole payload, instead of rate")
            bits = DEFAULT_BITS if bits is None else bits
            if not 0 < bits <= 8:
                raise ValueError(f"bits_per_parameter must be above 0 and at most 8, got {bits}")
        elif bits is not None:
            raise ValueError(f"{scheme} has no rate to set: leave bits_per_parameter out, or take {' or '.join(RATED)}")
        return cls(scheme, bits, SchemeSettings(**settings))  # type: ignore[arg-type]

    def for_model(self, model: Model) -> tuple[str, SchemeSettings]:
        """The scheme and its settings for a model, so that the whole payload keeps to the bits.

        `auto` is the scheme of least error in `klms bench mean`: `klms-rotated` at low rates, `eden` from two bits on;
        and `eden` for large models, where searching candidates would take seconds.
        """
        if self.bits is None:
            return self.scheme, self.settings
        d = model.layout.d
        if d == 0:  # nothing to compress
            return "float32", self.settings
        room = self.bits * model.size - 8 * (OVERHEAD + model.head_bytes + _SCHEME_BYTES)
        rate = min(room / d, 8.0)
        if rate < _LEAST_RATE:
            least = self.bits + (_LEAST_RATE * d - room) / model.size
            raise ValueError(
                f"{self.bits:g} bits per parameter leave no room beside the arrays that pass as they are: "
                f"say at least {least:.3g}, or a smaller `small`"
            )
        if self.scheme != AUTO:
            return self.scheme, replace(self.settings, rate=rate)
        if rate < _ROTATED_UP_TO and d <= _ROTATED_SIZE:
            return "klms-rotated", replace(self.settings, rate=rate, bits=_BLOCK_BITS)
        return "eden", replace(self.settings, rate=rate)


def _known(what: str, name: str, names: list[str]) -> None:
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise ValueError(f"there is no {what} {name!r}; {hint}")
