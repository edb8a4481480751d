"""`klms flower`: Flower deployments, and apps for them."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from klms.cli.show import console, fail, progress
from klms.errors import KLMSError

app = typer.Typer(help="Run our methods on Flower: as apps, and in a demo deployment.", no_args_is_help=True)

_COLUMNS = {
    "round": 5,
    "accuracy": 8,
    "replies": 7,
    "payload bytes": 13,
    "bits/parameter": 14,
    "wire bytes up": 13,
    "wire bytes down": 15,
    "seconds": 7,
}


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Train this many rounds.")] = 5,
    secure: Annotated[bool, typer.Option("--secure", help="Use TLS and authenticate the SuperNodes.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the run, the logs and the app in this folder.")] = None,
) -> None:
    """Train FedPM-KLMS on MNIST with a SuperLink and three SuperNodes, as processes of this machine.

    Payload bytes are what our messages take; wire bytes are all that passes between the SuperNodes and the SuperLink.
    Examples: `klms flower demo`, `klms flower demo --secure --rounds 10`
    """
    screen = console()
    screen.print("  ".join(f"{name:>{width}}" for name, width in _COLUMNS.items()), style="bold")
    with tempfile.TemporaryDirectory() as temporary, progress() as bar:
        task = bar.add_task("fetching the data, starting a SuperLink and three SuperNodes")
        try:
            from klms.flower import demo as demonstration

            for done in demonstration.run(out or Path(temporary), rounds=rounds, secure=secure):
                record = done.record
                shown = (
                    record.round,
                    f"{record.accuracy or 0.0:.4f}",
                    len(record.clients),
                    f"{record.payload_bytes or 0:,}",
                    f"{done.bits_per_parameter:.4f}",
                    f"{done.wire.up:,}",
                    f"{done.wire.down:,}",
                    f"{record.seconds['total']:.1f}",
                )
                line = "  ".join(f"{value:>{width}}" for value, width in zip(shown, _COLUMNS.values(), strict=True))
                screen.print(line, highlight=False)
                next_round = f"round {record.round + 1} of {rounds}" if record.round < rounds else "stopping"
                bar.update(task, description=next_round)
        except KLMSError as error:
            raise fail(str(error)) from error
    screen.print("all processes have ended" + (f"; the run is in {out}" if out else ""), highlight=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def new(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Write the app into this folder, which must be new or empty.")],
    method: Annotated[str, typer.Option(help="Run this method; `klms methods` lists them.")] = "fedpm-klms",
    profile: Annotated[str, typer.Option(help="Take the settings of this profile: small or paper.")] = "small",
    own: Annotated[bool, typer.Option("--own", help="Add a file for your own model and data.")] = False,
) -> None:
    """Write an app for `flwr run`: a method of klms with all its settings, which are those of `klms run`.

    Examples: `klms flower new app`, `klms flower new app --own --method qsgd-klms --clients 20 --rounds 100`
    """
    try:
        from klms.flower import template_app
        from klms.flower.settings import ServerSettings
        from klms.runs.settings import parse_options, resolve

        config = resolve(method, profile=profile, given=parse_options(context.args))
        template_app.create(folder, config, ServerSettings(), own=own)
    except KLMSError as error:
        raise fail(str(error)) from error
    edit = f"edit {folder}/klms_app/task.py, then " if own else ""
    console().print(f"{folder}: {edit}run it in simulation with `flwr run {folder}`; see its README", highlight=False)
