"""The bits of both directions, round by round: what the rule is told, and the policies that follow from its answer."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from klms.compressors.trellis import MAX_RATE
from klms.exchange.policy import BEST, UNCOMPRESSED, ArrayBits, CompressionPolicy
from klms.exchange.quality import Rates
from klms.exchange.rate_control import RateControl
from klms.exchange.rates import Moment, RateRule

log = logging.getLogger("klms")


@dataclass
class RoundRates:
    """How updates and models are compressed: at the bits of a rule, updates by the scheme that the user named."""

    rule: RateRule
    scheme: str
    settings: Mapping[str, object]
    array_bits: ArrayBits | None
    overhead: int
    """Bytes of an update's payload besides its head and message."""
    _made: dict[tuple[str, float | None], CompressionPolicy] = field(default_factory=dict)
    _advised: bool = False

    def __post_init__(self) -> None:
        self.control = RateControl(self.rule.target)
        """What the rates come to."""

    def check(self, round_: int) -> None:
        """Raise an error if it is known before a round that it cannot have its bits."""
        if self.rule.known:
            self.up(round_)
        self.down(round_, 1, 1)

    def up(self, round_: int, parameters: int = 0, clients: int = 1, client: str = "") -> CompressionPolicy:
        """Return how a client's update of so many parameters is compressed, in a round with so many clients."""
        bits = self.rule.up(self._moment(round_, parameters, clients, client))
        if bits is not None and not self.rule.heads:
            return CompressionPolicy.at(bits)
        if ("up", bits) not in self._made:
            policy = CompressionPolicy.of(self.scheme, bits, self.settings, self.array_bits, self.overhead)
            self._made["up", bits] = policy
        return self._made["up", bits]

    def down(self, round_: int, parameters: int, clients: int) -> CompressionPolicy | None:
        """Return how a model of so many parameters is compressed; None if it goes out unchanged."""
        bits = self.rule.down(self._moment(round_, parameters, clients))
        if not self.rule.heads:
            return CompressionPolicy.at(bits)
        if bits >= UNCOMPRESSED:
            return None
        bits = min(bits, MAX_RATE)
        if ("down", bits) not in self._made:
            self._made["down", bits] = CompressionPolicy.of(BEST, bits, {})
        return self._made["down", bits]

    def known(self, round_: int) -> float | None:
        """Return the bits of updates in a round, if they are known before it is known who takes part."""
        return self.up(round_).bits if self.rule.known else None

    def described(self, round_: int) -> str:
        """Say in a line what goes in which direction."""
        return f"scheme '{self.scheme}', {self.rule.described(self._moment(round_))}"

    def tell(self, round_: int) -> None:
        """Write what the last round came to into the log, and once a warning if it is too bad."""
        if self.control.latest is not None:
            log.info("klms: round %d had %s", round_, self.control.latest)
        if (advice := self.control.advice()) and not self._advised:
            self._advised = True
            log.warning("klms: %s", advice)

    def _moment(self, round_: int, parameters: int = 0, clients: int = 1, client: str = "") -> Moment:
        chosen = Rates(self.control.up, self.control.down)
        return Moment(round_, parameters, clients, client, chosen, self.control.latest)
