"""The command line: it parses arguments, calls the library and prints. Only commands that train import torch."""

from klms.cli.main import app

__all__ = ["app"]
