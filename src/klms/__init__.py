"""klms: federated-learning updates at the cost of their KL divergence."""

TYPE_CHECKING = False  # as in typing, whose import takes longer than all of this
if TYPE_CHECKING:
    from klms import runs as runs
    from klms import theory as theory
    from klms.codec import *  # noqa: F403
    from klms.compression import compress as compress
    from klms.compression import compress_to as compress_to
    from klms.compression import decompress as decompress
    from klms.compression import decompress_from as decompress_from
    from klms.error_feedback import ErrorFeedback as ErrorFeedback
    from klms.errors import InvalidArgument as InvalidArgument
    from klms.errors import OutOfSync as OutOfSync
    from klms.exchange.client import Client as Client
    from klms.exchange.rates import RateRule as RateRule
    from klms.exchange.server import Server as Server
    from klms.runs.federate import Run as Run
    from klms.runs.federate import federate as federate
    from klms.runs.inspection import inspect as inspect

__version__ = "0.1.0"

_HOMES = {
    "Client": "exchange.client",
    "RateRule": "exchange.rates",
    "Server": "exchange.server",
    "ErrorFeedback": "error_feedback",
    "InvalidArgument": "errors",
    "OutOfSync": "errors",
    "compress": "compression",
    "compress_to": "compression",
    "decompress": "compression",
    "decompress_from": "compression",
    "Run": "runs.federate",
    "federate": "runs.federate",
    "inspect": "runs.inspection",
}
"""Modules that define the public names outside the codec."""
_MODULES = ("codec", "errors", "numerics", "runs", "theory")


def __getattr__(name: str) -> object:
    """Import on first use, so that `import klms` is immediate and the command can be stopped from the beginning."""
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"klms.{name}")
    if name in _HOMES:
        return getattr(import_module(f"klms.{_HOMES[name]}"), name)
    if name == "__all__":
        return ["__version__", "theory", *_HOMES, *import_module("klms.codec").__all__]
    if not name.startswith("_") and name in (codec := import_module("klms.codec")).__all__:
        return getattr(codec, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Include the names that are imported on first use, for completion in a notebook."""
    from klms import codec

    return sorted({*globals(), *_HOMES, *_MODULES, *codec.__all__})
