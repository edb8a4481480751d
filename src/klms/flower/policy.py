"""Which scheme compresses an update, and at which rate: what the user of Flower asked for, fitted to the model."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from klms.codec import SharedKey
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.errors import InvalidArgument
from klms.flower.frame import OVERHEAD
from klms.flower.model import Model
from klms.runs.settings import check_name

log = logging.getLogger("flwr")

AUTO = "auto"
DEFAULT_BITS = 1.0
BEST = "klms"  # what `auto` means: the least error of all unbiased schemes at every rate in `klms bench mean`
_TINY = 1024  # parameters: four kilobytes are not worth a scheme
_LEAST_RATE = 0.005

Fitted = tuple[Scheme[Settings], Settings]


@dataclass(frozen=True)
class CompressionPolicy:
    """The scheme that the user named, or `auto`."""

    scheme: str
    bits: float | None
    """Bits per parameter of the whole payload; None for a scheme whose rate cannot be set."""
    values: Mapping[str, object]
    _fitted: dict[tuple[Layout, int], Fitted] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, scheme: str, bits: float | None, values: Mapping[str, object]) -> "CompressionPolicy":
        """Check what the user asked for."""
        check_name("scheme", scheme, [AUTO, *UPDATE_SCHEMES])
        chosen = UPDATE_SCHEMES[BEST if scheme == AUTO else scheme]
        if chosen.takes_rate:
            if "rate" in values:
                raise InvalidArgument("use bits_per_parameter, which counts the whole payload, instead of rate")
            bits = DEFAULT_BITS if bits is None else bits
            if not 0 < bits <= chosen.max_rate:
                raise InvalidArgument(f"bits_per_parameter must be above 0 and at most {chosen.max_rate:g}, got {bits}")
        elif bits is not None:
            rated = " or ".join(name for name, other in UPDATE_SCHEMES.items() if other.takes_rate)
            raise InvalidArgument(f"the rate of {scheme} cannot be set: omit bits_per_parameter, or use {rated}")
        if scheme == AUTO and values:
            raise InvalidArgument(f"{', '.join(values)}: settings belong to a scheme; name one with scheme=")
        for name in values:
            check_name(f"setting of {scheme}", name, chosen.settings.model_fields)
        chosen.settings.checked(values)
        return cls(scheme, bits, dict(values))

    @property
    def directions_only(self) -> bool:
        return self.scheme != AUTO and UPDATE_SCHEMES[self.scheme].directions_only

    def for_model(self, model: Model) -> Fitted:
        """Return the scheme and its settings, chosen so that the whole payload keeps to the bits per parameter."""
        if self.bits is None:
            chosen = UPDATE_SCHEMES[self.scheme]
            return chosen, chosen.settings.checked(self.values)
        which = (model.layout, model.head_bytes)
        if which not in self._fitted:
            self._fitted[which] = self._fit(model, self.bits)
        return self._fitted[which]

    def _fit(self, model: Model, bits: float) -> Fitted:
        d = model.layout.d
        if d == 0 or model.size < _TINY:
            log.warning("klms: nothing is compressed: of %d parameters, %d are in large arrays", model.size, d)
            return UPDATE_SCHEMES["float32"], UPDATE_SCHEMES["float32"].settings()
        room = bits * model.size - 8 * (OVERHEAD + model.head_bytes)
        rate, update = room / d, np.random.default_rng(0).standard_normal(d).astype(np.float32)
        scheme: Scheme[Settings] = UPDATE_SCHEMES[BEST if self.scheme == AUTO else self.scheme]

        def settings() -> Settings:
            return scheme.settings.checked({**self.values, "rate": min(max(rate, _LEAST_RATE), scheme.max_rate)})

        for _ in range(2):  # headers, scales and the padding of rotations come on top of the rate: measure how much
            if rate < _LEAST_RATE:
                least = bits + (_LEAST_RATE - rate) * d / model.size
                full = f"{bits:g} bits per parameter leave no room besides headers and arrays that are sent unchanged"
                raise InvalidArgument(f"{full}: use at least {least:.3g}")
            compressor, rng = scheme.make(model.layout, settings(), None), np.random.default_rng(0)
            side, key = compressor.start(), SharedKey(0, 0, 0)
            message = compressor.encode(update, side, key=key, rng=rng)
            rate -= max(0.0, 8 * len(message) - room) / d * 1.01
        error = float(np.sum((compressor.decode(message, side, key=key).vector - update) ** 2) / d)
        log.info(
            "klms: %s at %.3g bits for each of %d parameters; expect a squared error of %.2g times an update's own for "
            "one client, and of %.2g divided by their number for the average of many (less where layers differ)",
            scheme.name,
            settings().model_dump()["rate"],
            d,
            error,
            error,
        )
        return scheme, settings()
