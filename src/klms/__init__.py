"""klms: federated-learning updates at the cost of their KL divergence."""

from importlib import import_module
from typing import TYPE_CHECKING

from klms import theory
from klms.codec import *  # noqa: F403
from klms.codec import __all__ as _codec_names
from klms.errors import InvalidArgument, OutOfSync

if TYPE_CHECKING:
    from klms.compression import compress, decompress
    from klms.exchange.client import Client
    from klms.exchange.server import Server
    from klms.runs.federate import Run, federate
    from klms.runs.inspection import inspect

__version__ = "0.1.0"
__all__ = [
    "Client",
    "InvalidArgument",
    "OutOfSync",
    "Run",
    "Server",
    "__version__",
    "compress",
    "decompress",
    "federate",
    "inspect",
    "theory",
    *_codec_names,
]


def __getattr__(name: str) -> object:
    """Import on first use what takes long to import, so that `import klms` stays light."""
    if name in ("compress", "decompress"):
        from klms import compression

        return getattr(compression, name)
    if name in ("Client", "Server"):
        return getattr(import_module(f"klms.exchange.{name.lower()}"), name)
    if name in ("Run", "federate"):
        from klms.runs import federate

        return getattr(federate, name)
    if name == "inspect":
        from klms.runs import inspection

        return inspection.inspect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Name also what is imported on first use, for `dir` and for completion in a notebook."""
    return sorted({*globals(), *__all__})
