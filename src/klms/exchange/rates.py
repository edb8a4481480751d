"""How many bits each direction may take: what holds a quality, or what the user named.

Named bits are always the same, by round, client or array, or follow from a budget in bytes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature

from klms.compressors.budget import bits_within
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.compressors.trellis import MAX_RATE
from klms.errors import InvalidArgument
from klms.exchange.policy import AUTO, BEST, DEFAULT_BITS, UNCOMPRESSED, ArrayBits, CompressionPolicy
from klms.exchange.quality import TARGET
from klms.exchange.rate_control import RateControl
from klms.exchange.reply import OVERHEAD

Rate = float | Callable[..., float]
"""A number, or a function of the round; of a `round` and a `client` if it has parameters of these names."""


@dataclass
class Rates:
    """What the user asked for. `policy_up` and `policy_down` are what it means in a round."""

    scheme: str
    settings: Mapping[str, object]
    up: Rate | None
    down: Rate | None
    array_bits: ArrayBits | None = None
    budget: Rate | None = None
    control: RateControl = field(default_factory=lambda: RateControl(None))
    """What the rates come to, and their choice if they are to hold a quality."""
    overhead: int = OVERHEAD
    """Bytes of an update's payload besides its head and message."""
    _policies: dict[tuple[str, float | None], CompressionPolicy] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        scheme: str,
        settings: Mapping[str, object],
        both: Rate | None,
        up: Rate | None,
        down: Rate | None,
        array_bits: ArrayBits | None,
        budget: Rate | None,
        quality: float | None,
    ) -> "Rates":
        """Check that no direction is given twice."""
        named = any(one is not None for one in (both, up, down, array_bits, budget))
        holds = not named and scheme in (AUTO, BEST) and not settings
        if quality is not None and not holds:
            raise InvalidArgument("a quality finds the bits itself: omit the scheme and all bits, or the quality")
        if quality is not None and not 0 < quality < math.inf:
            raise InvalidArgument(f"quality must be above 0; 1 is the default, 2 allows half the harm; got {quality}")
        if both is not None and up is not None:
            raise InvalidArgument("bits_per_parameter is for both directions: use up= and down= to set them apart")
        if budget is not None and (both is not None or (up is not None and down is not None)):
            raise InvalidArgument("a budget sets the bits per parameter: omit bits_per_parameter, or up= or down=")
        if budget is not None and scheme in UPDATE_SCHEMES and not UPDATE_SCHEMES[scheme].takes_rate:
            raise InvalidArgument(f"the rate of {scheme} cannot be set, so that it cannot keep to a budget")
        down = both if down is None else down
        if _wants_client(down):
            raise InvalidArgument("all clients are sent one model: bits may depend on the client with up= only")
        control = RateControl(TARGET / (quality or 1.0) if holds else None)
        return cls(scheme, settings, both if up is None else up, down, array_bits, budget, control)

    @property
    def holds_quality(self) -> bool:
        """Whether the rates are chosen to hold a quality."""
        return self.control.target is not None

    @property
    def known(self) -> bool:
        """Whether the uplink's bits are known before it is known who takes part in a round."""
        return not _wants_client(self.up) and (self.budget is None or self.up is not None)

    def policy_up(self, number: int, client: str = "", parameters: int = 0, messages: int = 0) -> CompressionPolicy:
        """Return how the updates of a client are compressed in a round with so many messages of so many parameters."""
        if self.holds_quality:
            return CompressionPolicy.at(self.control.up)
        bits = _in_round(self.up, number, client)
        if bits is None and self.budget is not None:
            bits = self._within_budget(number, parameters, messages, alone=self.down is not None)
        if ("up", bits) not in self._policies:
            self._policies["up", bits] = CompressionPolicy.of(
                self.scheme, bits, self.settings, self.array_bits, self.overhead
            )
        return self._policies["up", bits]

    def policy_down(self, number: int, parameters: int = 0, messages: int = 0) -> CompressionPolicy | None:
        """Return how the model is compressed in a round; None if it is not."""
        if self.holds_quality:
            return CompressionPolicy.at(self.control.down)
        bits = _in_round(self.down, number)
        if bits is None and self.budget is not None:
            bits = self._within_budget(number, parameters, messages, alone=self.up is not None)
        elif bits is None:  # a scheme whose rate cannot be set says nothing of the downlink
            bits = (self.policy_up(number).bits or UNCOMPRESSED) if self.known else DEFAULT_BITS
        if bits >= UNCOMPRESSED:
            return None
        bits = min(bits, MAX_RATE)
        if ("down", bits) not in self._policies:
            self._policies["down", bits] = CompressionPolicy.of(BEST, bits, {})
        return self._policies["down", bits]

    def described(self, number: int) -> str:
        """Say in a line what goes in which direction."""
        if self.holds_quality:
            return f"models and updates at the bits that keep the harm of their noise at {self.control.target:g}"
        if self.budget is not None:
            return f"updates and models within {_in_round(self.budget, number):g} bytes per round"
        up = self.policy_up(number).bits if self.known else None
        bits = "" if up is None else f" at {up:g} bits per parameter"
        down = self.policy_down(number)
        model = "uncompressed" if down is None else f"at {down.bits:g} bits per parameter"
        return f"updates compressed with '{self.scheme}'{bits}, the model sent {model}"

    def _within_budget(self, number: int, parameters: int, messages: int, *, alone: bool) -> float:
        """Return the bits of one direction: half of the budget is for each, or all of it if the other's are set."""
        budget = _in_round(self.budget, number)
        if budget is None or not 0 < budget < math.inf:
            raise InvalidArgument(f"the budget must be a number of bytes above 0, got {budget}")
        bits = bits_within(budget if alone else budget / 2, parameters, messages)
        most = UNCOMPRESSED if self.scheme == AUTO else UPDATE_SCHEMES[self.scheme].max_rate
        return min(most, _rounded_down(bits))


def _wants_client(rate: Rate | None) -> bool:
    return callable(rate) and "client" in signature(rate).parameters


def _in_round(rate: Rate | None, number: int, client: str = "") -> float | None:
    """Return the rate; a function that does not ask for the client is given the round, whatever it calls it."""
    if not callable(rate):
        return rate
    parameters = signature(rate).parameters
    if "client" not in parameters:
        return rate(number)
    takes_all = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    asked = {"round": number, "client": client}
    return rate(**{name: value for name, value in asked.items() if takes_all or name in parameters})


def _rounded_down(bits: float) -> float:
    """Return three digits of a number, so that rounds with almost the same rate share what was fitted to it."""
    digits = 10.0 ** (2 - math.floor(math.log10(bits)))
    return math.floor(bits * digits) / digits
