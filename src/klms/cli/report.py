"""`klms report` and `klms serve`: runs as a web page."""

from pathlib import Path
from typing import Annotated

import typer

from klms import signals
from klms.cli.show import fail, say
from klms.report.document import make
from klms.report.page import write
from klms.report.serve import Server

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain run folders at any depth.")]


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Write the page and its files to this folder.")] = Path("report"),
) -> None:
    """Write the tables and figures of runs as one page, and the numbers of each figure as CSV.

    The page needs neither a network nor other files. Incomplete runs are shown up to their last round.

    Example: `klms report runs --out report`, then open report/index.html
    """
    made = make(runs)
    for what, remarks in (("left out", made.left_out), ("incomplete", made.incomplete)):
        for remark in remarks:
            typer.echo(f"{what}: {remark.name}: {remark.why}", err=True)
    if not made.sections:
        raise fail(f"there is no run to report in {', '.join(map(str, runs))}")
    write(made, out)
    say(f"{len(made.runs)} runs in {out / 'index.html'}")


def serve(
    runs: Runs,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Listen on this port; 0 for any free port.")] = 8000,
    host: Annotated[str, typer.Option(help="Listen on this address; by default only this machine can connect.")] = (
        "127.0.0.1"
    ),
) -> None:
    """Serve the page of `klms report` live, so that it follows runs while they train. Ctrl-C ends it.

    Example: `klms serve runs`, then open the address that it prints
    """
    missing = [str(place) for place in runs if not place.is_dir()]
    if missing:
        raise fail(f"there is no folder {', '.join(missing)}")
    try:
        server = Server(runs, host, port)
    except OSError as error:
        reason = error.strerror or error
        raise fail(f"cannot serve on {host}, port {port}: {reason}; --port 0 takes any free port") from error
    with server:
        typer.echo(f"{server.address}  (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            signals.caught()
            typer.echo("ended")
