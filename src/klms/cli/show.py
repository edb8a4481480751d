"""How the commands print, and how they end."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from klms import signals
from klms.errors import MissingExtra
from klms.printable import printable


def fail(problem: object) -> typer.Exit:
    """Print an error on standard error, and return the exception that the caller must raise to end the command."""
    text = printable(problem, keep="\n\t")
    Console(stderr=True, highlight=False, markup=False).print(f"error: {text}", style="red", soft_wrap=True)
    return typer.Exit(1)


def stopped(stop: KeyboardInterrupt) -> typer.Exit:
    """Print that the command was stopped, and return the exception that ends it with the customary exit code."""
    signals.caught()
    fail("; ".join(["stopped", *getattr(stop, "__notes__", [])]))
    return typer.Exit(143 if isinstance(stop, signals.Terminated) else 130)


@contextmanager
def stoppable(advice: str, once: Path | None = None) -> Iterator[None]:
    """Add advice to the message for a user who stops the command within this block.

    If `once` names a file, the advice is added only if this file exists when the command is stopped.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        signals.caught()
        if once is None or once.exists():
            stop.add_note(advice)
        raise


def say(text: str) -> None:
    """Print text, which may contain paths, without interpreting rich's markup or commands to the terminal in it."""
    console().print(printable(text, keep="\n"), highlight=False, markup=False, soft_wrap=True)


def need(package: str, extra: str) -> None:
    """End the command with advice on installation if a package is missing; the package is not imported."""
    if find_spec(package) is None:
        raise MissingExtra.told(f"this command needs {package}", extra)


def load(package: str) -> None:
    """Import a large package. A stop ends the command at once, since an exception could be lost during the import."""
    with signals.stopping(at_once=True):
        import_module(package)


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, right: Container[str] = ()
) -> None:
    """Print a table; columns named by `right` hold numbers, and a table without a title has no frame."""
    table = Table(title=escape(printable(title, keep="\n"))) if title else Table(box=None)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*(escape(printable(cell)) for cell in row))
    console().print(table)


def show_fields(fields: Mapping[str, object]) -> None:
    """Print names with their values, one line each; values of a dictionary have a line each, too."""
    table = Table(box=None, show_header=False)
    for name, value in fields.items():
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        lines = [printable(f"{key}: {_shown(one)}" if key else _shown(one)) for key, one in inner]
        table.add_row(escape(name.replace("_", " ")), escape("\n".join(lines)))
    console().print(table)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if type(value) is int else str(value)


def console() -> Console:
    """Return a console as wide as the terminal; without a terminal, wide enough for every table."""
    screen = Console()
    return screen if screen.is_terminal else Console(width=120)
