"""Checks of the strategies inside `Compressed`: strategies that are unsafe with compression are refused."""

import logging
from collections.abc import Iterable

from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Strategy

from klms.errors import InvalidArgument

log = logging.getLogger("flwr")
_AT_CLIENTS = (
    strategies.DifferentialPrivacyClientSideAdaptiveClipping,
    strategies.DifferentialPrivacyClientSideFixedClipping,
)
_PICKING = {strategies.Krum: 4.0, strategies.Bulyan: 4.0, strategies.MultiKrum: 2.0}  # Krum is a kind of MultiKrum
"""Minimum bits per parameter at which these strategies do as well as without compression, as measured by
`examples/flower-picking` for Krum and MultiKrum; Bulyan is assumed to be as sensitive as Krum."""


def check_kind(strategy: object, methods: Iterable[str]) -> None:
    """Raise an error if this is not a strategy of Flower's Message API."""
    if not isinstance(strategy, type) and all(callable(getattr(strategy, name, None)) for name in ("start", *methods)):
        return
    legacy = [cls for cls in type(strategy).__mro__ if cls.__module__.startswith("flwr.server.")]
    if legacy:
        raise InvalidArgument(
            f"{type(strategy).__name__} is of the legacy API (flwr.server.strategy), whose messages klms does not see: "
            f"use flwr.serverapp.strategy.{legacy[0].__name__} with a ServerApp that calls strategy.start()"
        )
    raise InvalidArgument(f"{strategy!r} is not a strategy: Compressed takes those of flwr.serverapp.strategy")


def check_within(strategy: Strategy, bits: float | None) -> None:
    """Raise an error if an inner strategy cannot work with compression; warn if `bits` per parameter may be too few."""
    found = [strategy]
    for inner in found:
        held = [value for value in vars(inner).values() if isinstance(value, Strategy)]
        found += [value for value in held if not any(value is other for other in found)]
        if isinstance(inner, _AT_CLIENTS):
            problem = "clips before klms encodes, so a decoded update may exceed the norm that its noise is meant for"
            raise InvalidArgument(f"{type(inner).__name__} {problem}: use the strategy that clips at the server")
        enough = next((bits for kind, bits in _PICKING.items() if isinstance(inner, kind)), 0.0)
        if bits is not None and bits < enough:
            problem = "picks single updates, whose noise no average reduces; at %g bits per parameter it is large"
            remedy = "use %g or more, or a strategy that averages (FedMedian, FedTrimmedAvg)"
            log.warning(f"klms: %s {problem}: {remedy}", type(inner).__name__, bits, enough)
