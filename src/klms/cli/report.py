"""`klms report` and `klms serve`: runs as a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klms.cli.show import console, fail

if TYPE_CHECKING:
    from klms.report.document import Report

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some at any depth.")]


def register(app: typer.Typer) -> None:
    """Put the commands into the application."""
    app.command()(report)
    app.command()(serve)


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The folder that it is written to.")] = Path("report"),
) -> None:
    """Write tables and figures of runs as one page, and each figure as PNG, SVG and CSV.

    The page needs no network and no other file; runs that are not finished are shown as far as they are.

    Example: `klms report runs --out report`, then open report/index.html
    """
    from klms.report.document import make
    from klms.report.write import write

    made = make(runs)
    _say_skipped(made)
    if not made.sections:
        raise fail(f"no run to report in {', '.join(map(str, runs))}")
    try:
        pictures = write(made, out)
    except OSError as error:
        raise fail(f"{error.filename}: {error.strerror}") from error
    screen = console()
    if not pictures:
        screen.print("for PNG and SVG: pip install 'klms[plots]'", highlight=False, markup=False)
    screen.print(f"{made.runs} runs in {out / 'index.html'}", highlight=False, markup=False, soft_wrap=True)


def serve(
    runs: Runs,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="Who may look: this machine only, unless another address is given.")] = (
        "127.0.0.1"
    ),
) -> None:
    """Show the same page live: it follows runs under way. Ctrl-C ends it.

    Example: `klms serve runs`, then open the address that it prints
    """
    from klms.report.serve import Server

    missing = [str(place) for place in runs if not place.is_dir()]
    if missing:
        raise fail(f"there is no folder {', '.join(missing)}")
    try:
        server = Server(runs, host, port)
    except OSError as error:
        raise fail(
            f"cannot serve on {host}, port {port}: {error.strerror or error}; --port 0 takes a free one"
        ) from error
    with server:
        typer.echo(f"{server.address}  (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ended")


def _say_skipped(made: "Report") -> None:
    for skipped in made.skipped:
        typer.echo(f"left out: {skipped.name}: {skipped.why}", err=True)
