"""klms in Flower: two lines that compress the updates of any app, and the methods of klms as apps.

    app = ClientApp(mods=[klms.flower.compress()])                         # the client
    strategy = klms.flower.Compressed(FedAvg(), bits_per_parameter=1)      # the server

`docs/flower.md` shows how to turn a stock quickstart into either. Needs the extra `flower`.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from klms.errors import MissingExtra

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise MissingExtra.told("klms.flower needs Flower", "flower") from error

from klms.flower.mod import compress
from klms.flower.strategy import Compressed

if TYPE_CHECKING:
    from klms.flower.client import client_app
    from klms.flower.server import server_app

__all__ = ["Compressed", "client_app", "compress", "server_app"]

logging.getLogger("klms").parent = logging.getLogger("flwr")
"""Log lines of the exchange appear in Flower's log, at its level."""


def __getattr__(name: str) -> object:
    """Import the apps when they are used: unlike `compress` and `Compressed`, they need torch."""
    if name in ("client_app", "server_app"):
        return getattr(import_module(f"klms.flower.{name.removesuffix('_app')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
