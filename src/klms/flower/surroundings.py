"""What stands around `Compressed` and inside it: strategies that would do harm there are found and refused.

Differential privacy must see the updates themselves. Around `Compressed`, a strategy that clips would find payloads
instead of arrays, clip nothing and add its noise all the same. A strategy whose clients clip before klms encodes would
have bounds that a decoded update may exceed.
"""

import logging
import sys
from collections.abc import Iterator

from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Strategy

from klms.errors import InvalidArgument

log = logging.getLogger("flwr")
_AT_CLIENTS = (
    strategies.DifferentialPrivacyClientSideAdaptiveClipping,
    strategies.DifferentialPrivacyClientSideFixedClipping,
)
_AT_SERVER = (
    strategies.DifferentialPrivacyServerSideAdaptiveClipping,
    strategies.DifferentialPrivacyServerSideFixedClipping,
)
_PICKING = (strategies.Krum, strategies.MultiKrum, strategies.Bulyan)
_ENOUGH_TO_PICK = 4.0


def within(strategy: Strategy) -> Iterator[Strategy]:
    """Yield a strategy and all that it holds, under whatever names, and so on."""
    found, left = [strategy], [strategy]
    while left:
        for value in vars(left.pop()).values():
            if isinstance(value, Strategy) and not any(value is other for other in found):
                found.append(value)
                left.append(value)
    return iter(found)


def check_within(strategy: Strategy, bits: float | None) -> None:
    """Raise an error if a strategy inside cannot work there, and warn if it may not at so many bits."""
    for inner in within(strategy):
        if isinstance(inner, _AT_CLIENTS):
            problem = "clips before klms encodes, and a decoded update may be longer than its noise allows for"
            raise InvalidArgument(f"{type(inner).__name__} {problem}: use the strategy that clips at the server")
        if isinstance(inner, _PICKING) and bits is not None and bits < _ENOUGH_TO_PICK:
            log.warning(
                "klms: %s picks single updates, whose noise no average reduces; at %g bits per parameter that is much: "
                "use %g or more, or a strategy that averages (FedMedian, FedTrimmedAvg)",
                type(inner).__name__,
                bits,
                _ENOUGH_TO_PICK,
            )


def check_around(compressed: Strategy, strategy: Strategy) -> None:
    """Raise an error if `configure_train` was called by a strategy of differential privacy around this one.

    Nothing else tells a strategy what it was wrapped in, so this looks at who is calling.
    """
    inside = [compressed, *within(strategy)]
    frame = sys._getframe(2)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, (*_AT_CLIENTS, *_AT_SERVER)) and not any(caller is one for one in inside):
            name = type(caller).__name__
            raise InvalidArgument(
                f"{name} around Compressed would find no arrays to clip: write Compressed({name}(strategy, ...))"
            )
        frame = frame.f_back  # type: ignore[assignment]
