"""`klms flower`: Flower deployments, and apps for them."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from klms import signals
from klms.cli.live import Live
from klms.cli.settings import ANY_OPTION, TakesSettings, settings_given
from klms.cli.show import console, say

app = typer.Typer(help="Run the methods of klms on Flower: as apps, and in a demo deployment.", no_args_is_help=True)

_PAYLOAD, _WIRE = ("bits/parameter up", "payload up", "payload down"), ("wire up", "wire down")
_COLUMNS = ("round", "accuracy", "replies", *_PAYLOAD, *_WIRE, "seconds")


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Train this many rounds.")] = 5,
    secure: Annotated[bool, typer.Option("--secure", help="Use TLS and authenticate the SuperNodes.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the run, the logs and the app in this folder.")] = None,
) -> None:
    """Train FedPM-KLMS on MNIST with a SuperLink and three SuperNodes, as processes on this machine.

    Payload is the size of the messages of klms in bytes; wire is all bytes between the SuperNodes and the SuperLink.
    Examples: `klms flower demo`, `klms flower demo --secure --rounds 10`
    """
    from klms.flower import demo as demonstration

    console().print("  ".join(_COLUMNS), style="bold")
    sent = [0, 0, 0, 0]  # payload up, payload down, wire up, wire down
    patient = signals.stopping(at_once=False, patience=60)  # Flower's processes take seconds to end
    with patient, tempfile.TemporaryDirectory() as temporary, Live() as live:
        live.show("fetching the data, starting a SuperLink and three SuperNodes")
        for done in demonstration.run(out or Path(temporary), rounds=rounds, secure=secure):
            record = done.record
            trained = (str(record.round), f"{record.accuracy or 0.0:.4f}", str(len(record.clients)))
            sizes = (record.payload_bytes or 0, record.downlink_bytes, done.wire.up, done.wire.down)
            sent = [before + now for before, now in zip(sent, sizes, strict=True)]
            values = (f"{done.bits_per_parameter:.4f}", *(f"{size:,}" for size in sizes))
            shown = zip(_COLUMNS, (*trained, *values, f"{record.seconds['total']:.1f}"), strict=True)
            live.say("  ".join(value.rjust(len(name)) for name, value in shown))
            live.show(f"round {record.round + 1} of {rounds}" if record.round < rounds else "stopping")
    for name, (up, down) in {"payload": sent[:2], "wire": sent[2:]}.items():
        say(f"{name}: {up:,} bytes up, {down:,} bytes down, {up + down:,} bytes in total")
    say("all processes have ended" + (f"; the run is in {out}" if out else ""))


@app.command(cls=TakesSettings, context_settings=ANY_OPTION)
def new(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Write the app into this folder, which must be new or empty.")],
    method: Annotated[str, typer.Option(help="Run this method; `klms methods` lists them.")] = "fedpm-klms",
    profile: Annotated[str, typer.Option(help="Take the settings of this profile: small, cpu or paper.")] = "small",
    own: Annotated[bool, typer.Option("--own", help="Add a file for your own model and data.")] = False,
) -> None:
    """Write an app for `flwr run`: a method of klms with all its settings, which are those of `klms run`.

    Examples: `klms flower new app`, `klms flower new app --own --method qsgd-klms --clients 20 --rounds 100`
    """
    from klms.flower import template_app
    from klms.flower.settings import ServerSettings
    from klms.runs.settings import resolve

    config = resolve(method, profile=profile, given=settings_given(context))
    template_app.create(folder, config, ServerSettings(), own=own)
    edit = f"edit {folder}/klms_app/task.py, then " if own else ""
    nodes = f"--federation-config 'num-supernodes={config.clients}'"  # Flower's own default is 2
    say(f"{folder}: {edit}run it in simulation with `flwr run {folder} {nodes}`; see its README")
