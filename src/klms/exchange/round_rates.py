"""The rates of both directions, round by round: the facts given to the rule, and the policies made from its answer."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from klms.compressors.trellis import MAX_RATE
from klms.exchange.policy import BEST, UNCOMPRESSED, ArrayBits, CompressionPolicy
from klms.exchange.quality import Rates
from klms.exchange.rate_control import RateControl
from klms.exchange.rates import Moment, RateRule

log = logging.getLogger("klms")
_UNMEASURED = 4.0  # bits at which the error is below 0.5 per cent: SCAFFOLD then learns as without compression


@dataclass
class RoundRates:
    """Decides how updates and models are compressed: both at a rule's rates, and updates with the user's scheme."""

    rule: RateRule
    scheme: str
    settings: Mapping[str, object]
    array_bits: ArrayBits | None
    overhead: int
    """Bytes of an update's payload in addition to its head (`model.py`) and its message."""
    _made: dict[tuple[str, float | None], CompressionPolicy] = field(default_factory=dict)
    _advised: bool = False

    def __post_init__(self) -> None:
        self.control = RateControl(self.rule.target)
        """Measures the effect of the rates."""

    def check(self, round_: int) -> None:
        """Raise an error if the rates of a round are already known to be impossible."""
        if self.rule.known:
            self.up(round_)
        self.down(round_, 1, 1)

    def up(
        self, round_: int, parameters: int = 0, clients: int = 1, client: str = "", *, unmeasured: bool = False
    ) -> CompressionPolicy:
        """Return the policy for a client's update of `parameters` parameters, in a round with `clients` clients.

        `unmeasured` says that the effect of the update's noise is not measured, or not that of all of its arrays.
        """
        bits = self.rule.up(self._moment(round_, parameters, clients, client))
        if bits is not None and not self.rule.heads:
            return CompressionPolicy.at(max(bits, _UNMEASURED) if unmeasured else bits)
        if ("up", bits) not in self._made:
            policy = CompressionPolicy.of(self.scheme, bits, self.settings, self.array_bits, self.overhead)
            self._made["up", bits] = policy
        return self._made["up", bits]

    def down(self, round_: int, parameters: int, clients: int) -> CompressionPolicy | None:
        """Return the policy for a model of `parameters` parameters; None if the model is sent unchanged."""
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
        """Return the bits per parameter of updates in a round; None if the rate depends on the client."""
        return self.up(round_).bits if self.rule.known else None

    def described(self, round_: int) -> str:
        """Describe in one line how both directions are coded."""
        return f"scheme '{self.scheme}', {self.rule.described(self._moment(round_))}"

    def tell(self, round_: int) -> None:
        """Log the quality of the last round, and warn once if the rates do too much harm."""
        if self.control.latest is not None:
            log.info("klms: round %d had %s", round_, self.control.latest)
        if (advice := self.control.advice()) and not self._advised:
            self._advised = True
            log.warning("klms: %s", advice)

    def _moment(self, round_: int, parameters: int = 0, clients: int = 1, client: str = "") -> Moment:
        chosen = Rates(self.control.up, self.control.down)
        return Moment(round_, parameters, clients, client, chosen, self.control.latest)
