"""How the commands print."""

from importlib.util import find_spec

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def fail(problem: object) -> typer.Exit:
    """Print an error on standard error, and return the exception that the caller must raise to end the command."""
    Console(stderr=True, highlight=False, markup=False).print(f"error: {problem}", style="red", soft_wrap=True)
    return typer.Exit(1)


def say(text: str) -> None:
    """Print a line unchanged: paths may contain what rich takes for markup."""
    console().print(text, highlight=False, markup=False, soft_wrap=True)


def need_learning() -> None:
    """End the command with the way to install torch if that is missing."""
    need("torch", "learn")


def need(package: str, extra: str) -> None:
    """End the command with the way to install a package if that is missing; the package is not imported."""
    if find_spec(package) is None:
        raise fail(f"this command needs {package}: pip install 'klms[{extra}]'")


def console() -> Console:
    """Return a console as wide as the terminal; without a terminal, wide enough for every table."""
    screen = Console()
    return screen if screen.is_terminal else Console(width=120)


def progress(*, bar: bool = False) -> Progress:
    """Return a progress display on standard error that stays silent unless that is a terminal."""
    screen = Console(stderr=True)
    columns = [BarColumn(), TimeRemainingColumn()] if bar else [SpinnerColumn(), TimeElapsedColumn()]
    return Progress(
        TextColumn("{task.description}"), *columns, console=screen, transient=True, disable=not screen.is_terminal
    )
