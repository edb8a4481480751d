"""Runs of one method: settings, the run folder, execution, trackers and export."""

TYPE_CHECKING = False  # as in `klms`
if TYPE_CHECKING:
    from klms.runs import export as export


def __getattr__(name: str) -> object:
    """Import `klms.runs.export` on first use, so that it is reached after `import klms` alone."""
    from importlib import import_module

    if name == "export":
        return import_module("klms.runs.export")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
