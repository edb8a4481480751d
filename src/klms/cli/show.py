"""How the commands print, and how they end."""

import signal
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from klms.errors import MissingExtra


def fail(problem: object) -> typer.Exit:
    """Print an error on standard error, and return the exception that the caller must raise to end the command."""
    Console(stderr=True, highlight=False, markup=False).print(f"error: {problem}", style="red", soft_wrap=True)
    return typer.Exit(1)


class Terminated(KeyboardInterrupt):
    """SIGTERM: it ends a command as Ctrl-C does, with another exit code."""


@contextmanager
def stoppable(advice: str = "") -> Iterator[None]:
    """End the command with one line and the customary exit code after Ctrl-C (130) or SIGTERM (143)."""
    try:
        yield
    except KeyboardInterrupt as stop:
        fail("; ".join(filter(None, ("stopped", advice))))
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None


@contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that processes, locks and semaphores are cleared away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say(text: str) -> None:
    """Print a line unchanged: paths may contain what rich takes for markup."""
    console().print(text, highlight=False, markup=False, soft_wrap=True)


def need(package: str, extra: str) -> None:
    """End the command with the way to install a package if that is missing; the package is not imported."""
    if find_spec(package) is None:
        raise MissingExtra.told(f"this command needs {package}", extra)


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, right: Container[str] = ()
) -> None:
    """Print a table, whose columns named by `right` hold numbers; without a title it has no frame."""
    table = Table(title=title) if title else Table(box=None)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    console().print(table)


def console() -> Console:
    """Return a console as wide as the terminal; without a terminal, wide enough for every table."""
    screen = Console()
    return screen if screen.is_terminal else Console(width=120)


def progress(*, bar: bool = False, remaining: bool = True) -> Progress:
    """Return a progress display on standard error that stays silent unless that is a terminal.

    A bar has the time that remains beside it, unless the caller knows better.
    """
    screen = Console(stderr=True)
    columns = [BarColumn(), *([TimeRemainingColumn()] if remaining else [])]
    if not bar:
        columns = [SpinnerColumn(), TimeElapsedColumn()]
    return Progress(
        TextColumn("{task.description}"), *columns, console=screen, transient=True, disable=not screen.is_terminal
    )
