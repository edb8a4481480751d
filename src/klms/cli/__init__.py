"""The command line: parses, calls, prints. What needs torch is imported by the command that needs it."""

from klms.cli.main import app

__all__ = ["app"]
