"""Rate rules: the bits per parameter of both directions in a round.

If the user names no rate, the server keeps a constant quality (`ConstantQuality`). Bits per parameter give a
`NamedBits` rule, and bytes per round give a `Budget`. A `RateRule` of your own is passed as
`klms.Server(model, rates=MoreAtFirst())`:

    class MoreAtFirst(klms.RateRule):
        def up(self, now):
            return 2 / now.round

        def down(self, now):
            return 1 if now.latest is None or now.latest.harm < 0.1 else 2
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Protocol

from klms.compressors.arguments import number
from klms.compressors.budget import bits_within
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.compressors.trellis import MAX_RATE, MIN_RATE
from klms.errors import InvalidArgument
from klms.exchange.held import JUMP_RATE
from klms.exchange.policy import AUTO, BEST, DEFAULT_BITS, UNCOMPRESSED, ArrayBits
from klms.exchange.quality import FIRST_ROUND, TARGET, Rates
from klms.exchange.rate_control import RoundQuality

Rate = float | Callable[..., float]
"""A number, a function of the round, or a function of `client` and optionally `round`, passed by name."""


@dataclass(frozen=True)
class Moment:
    """Facts that are known when a rule is asked for a rate."""

    round: int
    parameters: int = 0
    """Number of entries of the arrays in the message; 0 if it is not known yet."""
    clients: int = 0
    """Number of clients in a round, taken from the last round; 0 if it is not known yet."""
    client: str = ""
    """Client that sends the update; empty for the model, which is the same for all clients."""
    chosen: Rates = field(default_factory=lambda: Rates(FIRST_ROUND, FIRST_ROUND))
    """The cheapest rates that keep the harm at the rule's `target`, if the rule has one."""
    latest: RoundQuality | None = None
    """Measured quality of the last round; None before the second model."""


class RateRule(Protocol):
    """Decides the bits per parameter of the messages of a round. A rule of your own needs only `up` and `down`."""

    @property
    def known(self) -> bool:
        """Whether all clients' updates have the same rate; if so, the rate is checked before the first round."""
        return False

    @property
    def target(self) -> float | None:
        """Harm that `Moment.chosen` aims at; None for a rule that does not use `Moment.chosen`."""
        return None

    @property
    def heads(self) -> bool:
        """Whether the rates include the headers of messages; if not, they are the rates of the coded vectors alone."""
        return True

    @property
    def least_first(self) -> float:
        """Minimum bits per parameter of the first model."""
        return JUMP_RATE

    @abstractmethod
    def up(self, now: Moment) -> float | None:
        """Return the bits per parameter of a client's update; None for a scheme whose rate cannot be set."""

    @abstractmethod
    def down(self, now: Moment) -> float:
        """Return the bits per parameter of the step to the next model; at 32 or more, the model is sent unchanged."""

    def described(self, now: Moment) -> str:
        """Describe in one line how both directions are coded."""
        return f"models and updates at the bits of {type(self).__name__}"


@dataclass(frozen=True)
class ConstantQuality(RateRule):
    """The rates that keep the harm of the noise in both directions at a target (`quality.py`)."""

    target: float = TARGET
    known = True
    heads = False
    least_first = 0.0

    def up(self, now: Moment) -> float:
        return now.chosen.up

    def down(self, now: Moment) -> float:
        return now.chosen.down

    def described(self, now: Moment) -> str:
        return f"models and updates at the bits that keep the harm of their noise at {self.target:g}"


@dataclass(frozen=True)
class NamedBits(RateRule):
    """Bits per parameter that the user named: constants, or functions of the round and, for updates, of the client."""

    up_bits: Rate | None
    """None for a scheme whose rate cannot be set."""
    down_bits: Rate

    @property
    def known(self) -> bool:
        return not _wants_client(self.up_bits)

    def up(self, now: Moment) -> float | None:
        return None if self.up_bits is None else in_round(self.up_bits, now)

    def down(self, now: Moment) -> float:
        return in_round(self.down_bits, now)

    def described(self, now: Moment) -> str:
        up = self.up(now) if self.known else None
        updates = "updates at the bits of their scheme or client" if up is None else f"updates at {up:g} bits"
        down = self.down(now)
        models = "models uncompressed" if down >= UNCOMPRESSED else f"models at {min(down, MAX_RATE):g} bits"
        return f"{updates} and {models} per parameter"


@dataclass(frozen=True)
class Budget(RateRule):
    """Bytes per round.

    They determine the rates of both directions or, if one rate is set, that of the other direction.
    """

    total: Rate
    most: float = MAX_RATE
    """Maximum bits per parameter that the scheme accepts."""
    messages: int = 2
    """Messages per client that share the budget."""
    up_bits: Rate | None = None
    down_bits: Rate | None = None
    rounded: bool = True
    """Whether rates are cut to three digits, so that rounds with almost the same rate share their fitted settings."""

    @property
    def known(self) -> bool:
        return self.up_bits is not None and not _wants_client(self.up_bits)

    def up(self, now: Moment) -> float:
        return self._share(now) if self.up_bits is None else in_round(self.up_bits, now)

    def down(self, now: Moment) -> float:
        return self._share(now) if self.down_bits is None else in_round(self.down_bits, now)

    def described(self, now: Moment) -> str:
        return f"updates and models within {in_round(self.total, now):g} bytes per round"

    def _share(self, now: Moment) -> float:
        total = in_round(self.total, now)
        if not 0 < total < math.inf:
            raise InvalidArgument(f"the budget must be a number of bytes above 0, got {total}")
        bits = bits_within(total, now.parameters, now.clients * self.messages)
        if bits < MIN_RATE:
            raise InvalidArgument(
                f"a budget of {total:,} bytes leaves {bits:.2g} bits per parameter; it must be at least {MIN_RATE:g}, "
                f"which takes {math.ceil(total * MIN_RATE / bits):,} bytes"
            )
        return min(self.most, _rounded_down(bits) if self.rounded else bits)


@dataclass(frozen=True)
class RateArguments:
    """The arguments about rates that the user gave a server."""

    scheme: str = AUTO
    has_settings: bool = False
    both: Rate | None = None
    up: Rate | None = None
    down: Rate | None = None
    array_bits: ArrayBits | None = None
    budget: Rate | None = None
    quality: float | None = None
    rates: RateRule | None = None

    @property
    def takes_rate(self) -> bool:
        return self.scheme == AUTO or UPDATE_SCHEMES[self.scheme].takes_rate

    @property
    def names_bits(self) -> bool:
        return any(bits is not None for bits in (self.both, self.up, self.down, self.array_bits, self.budget))

    def rule(self) -> RateRule:
        """Return the rule that the arguments ask for; raise an error if they are invalid or ask for several rules."""
        named = {"bits_per_parameter": self.both, "up": self.up, "down": self.down, "budget": self.budget}
        for name, rate in {**named, "quality": self.quality}.items():
            if rate is not None and (name == "quality" or not callable(rate)):
                number(name, rate)
        if self.rates is not None:
            return self._own(self.rates)
        if self.names_bits or self.scheme not in (AUTO, BEST) or self.has_settings:
            if self.quality is not None:
                raise InvalidArgument("a quality finds the bits itself: omit the scheme and all bits, or the quality")
            return self._named() if self.budget is None else self._within(self.budget)
        quality = 1.0 if self.quality is None else self.quality
        if not 0 < quality < math.inf:
            raise InvalidArgument(f"quality must be above 0; 1 is the default, 2 allows half the harm; got {quality}")
        return ConstantQuality(TARGET / quality)

    def _own(self, rule: RateRule) -> RateRule:
        if isinstance(rule, type):
            raise InvalidArgument(f"rates= takes an instance of your rule, got the class {rule.__name__}")
        if not all(hasattr(rule, name) for name in _RULE):
            kind = type(rule).__name__
            raise InvalidArgument(
                f"rates= takes a rule, got {kind}: derive a class with up and down from klms.RateRule"
            )
        if self.quality is not None or any(one is not None for one in (self.both, self.up, self.down, self.budget)):
            raise InvalidArgument("rates= is a rule for all bits: omit all bits, the budget and the quality")
        if not self.takes_rate:
            raise InvalidArgument(f"the rate of {self.scheme} cannot be set, so it cannot keep to rates=")
        return rule

    def _named(self) -> NamedBits:
        if self.both is not None and self.up is not None:
            raise InvalidArgument("bits_per_parameter is for both directions: use up= and down= to set each on its own")
        up = self.both if self.up is None else self.up
        if up is None and self.takes_rate:
            up = DEFAULT_BITS
        down = self.both if self.down is None else self.down
        _check_one_model(down)
        if down is None:  # a scheme whose rate cannot be set says nothing about the downlink
            down = UNCOMPRESSED if up is None else up
            down = DEFAULT_BITS if _wants_client(down) else down
        return NamedBits(up, down)

    def _within(self, budget: Rate) -> Budget:
        if self.both is not None or (self.up is not None and self.down is not None):
            raise InvalidArgument("a budget sets the bits per parameter: omit bits_per_parameter, or up= or down=")
        if not self.takes_rate:
            raise InvalidArgument(f"the rate of {self.scheme} cannot be set, so it cannot keep to a budget")
        _check_one_model(self.down)
        most = UNCOMPRESSED if self.scheme == AUTO else UPDATE_SCHEMES[self.scheme].max_rate
        alone = self.up is not None or self.down is not None
        return Budget(budget, most, 1 if alone else 2, self.up, self.down)


_RULE = ("up", "down", "known", "target", "heads", "least_first", "described")


def in_round(rate: Rate, now: Moment) -> float:
    """Return the rate; a function without a parameter `client` is given the round as its only argument."""
    if not callable(rate):
        return rate
    parameters = signature(rate).parameters
    if "client" not in parameters:
        return rate(now.round)
    takes_all = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    asked = {"round": now.round, "client": now.client}
    return rate(**{name: value for name, value in asked.items() if takes_all or name in parameters})


def _wants_client(rate: Rate | None) -> bool:
    return callable(rate) and "client" in signature(rate).parameters


def _check_one_model(down: Rate | None) -> None:
    if _wants_client(down):
        raise InvalidArgument("all clients are sent the same model: bits may depend on the client with up= only")


def _rounded_down(bits: float) -> float:
    """Return a number rounded down to three digits."""
    digits = 10.0 ** (2 - math.floor(math.log10(bits)))
    return math.floor(bits * digits) / digits
