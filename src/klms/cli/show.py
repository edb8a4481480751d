"""How the commands print."""

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def fail(message: str) -> typer.Exit:
    """Say what is wrong on standard error; raise what this returns."""
    Console(stderr=True, highlight=False, markup=False).print(f"error: {message}", style="red", soft_wrap=True)
    return typer.Exit(1)


def need_learning() -> None:
    """What trains needs torch and pydantic: say how to get them."""
    try:
        import klms.methods.registry  # noqa: F401
    except ModuleNotFoundError as error:
        raise fail(f"this needs {error.name}: pip install 'klms[learn]'") from error


def console() -> Console:
    """As wide as the terminal; wide enough for every table where there is none."""
    screen = Console()
    return screen if screen.is_terminal else Console(width=120)


def progress(*, bar: bool = False) -> Progress:
    """On standard error, and only on a terminal: what is piped on stays clean."""
    screen = Console(stderr=True)
    columns = [BarColumn(), TimeRemainingColumn()] if bar else [SpinnerColumn(), TimeElapsedColumn()]
    return Progress(
        TextColumn("{task.description}"), *columns, console=screen, transient=True, disable=not screen.is_terminal
    )
