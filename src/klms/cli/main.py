"""The `klms` command with all its subcommands, and `klms inspect`."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

import klms
from klms import compression, stops
from klms.cli import bench, data, experiment, flower, learn, report
from klms.cli.settings import ANY_OPTION, TakesSettings
from klms.cli.show import console, fail, progress, say, stopped
from klms.errors import KLMSError


class _Commands(TyperGroup):
    """The commands; an error that klms raises on purpose, or one of a file, ends any of them with one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with stops.stopping(at_once=False):
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise stopped(stop) from None
        except BrokenPipeError:  # click ends quietly when nobody reads the output
            raise
        except OSError as error:
            raise fail(f"{error.filename}: {error.strerror}" if error.filename else error) from error
        except KLMSError as error:
            raise fail(error) from error


app = typer.Typer(cls=_Commands, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(experiment.app, name="experiment")
app.add_typer(flower.app, name="flower")
app.command()(learn.methods)
app.command(cls=TakesSettings, context_settings=ANY_OPTION)(learn.run)
for command in (learn.demo, learn.export, learn.results, report.report, report.serve):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(klms.__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Send federated-learning updates at the cost of their KL divergence.

    Examples: `klms demo`, `klms run fedpm-klms --profile small`, `klms report runs`
    """


@app.command()
def warmup() -> None:
    """Compile all kernels now, once per machine and release, so that no later call waits for that.

    Example: `klms warmup`
    """
    from klms.compressors.warmup import compile_kernels

    started = time.monotonic()
    with progress() as shown:
        task = shown.add_task("compiling")
        for name in compile_kernels():
            shown.update(task, description=f"compiled {name}")
    say(f"all kernels are compiled ({time.monotonic() - started:.0f} s)")


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="File that holds one message, or a model of `klms export`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a message of the codec or of `klms.compress`, or an exported model, says of itself.

    Neither `p` nor the key is needed.

    Examples: `klms inspect client-3.klms`, `klms inspect runs/fedpm-klms-0/model.klms`
    """
    from klms.runs import export

    data = file.read_bytes()
    if export.is_model(data):
        about, parameters = export.describe(data, file)
        fields = about.model_dump(mode="json") | {"parameter_bytes": len(parameters)}
    else:
        try:
            fields = _of_update(data) if data[:2] == compression.MAGIC else _of_codec(data)
        except KLMSError as error:
            raise fail(f"{file}: {error}") from error
    if as_json:
        typer.echo(json.dumps(fields, indent=2))
        return
    table = Table(box=None, show_header=False)
    for name, value in fields.items():
        shown = f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
        if isinstance(value, dict):
            shown = "\n".join(f"{key}: {text}" if key else text for key, text in value.items())
        table.add_row(name.replace("_", " "), escape(shown))
    console().print(table)


def _of_codec(data: bytes) -> dict[str, Any]:
    info = klms.inspect(data)
    return dataclasses.asdict(info) | {"tag": info.tag.hex(), "bits_per_parameter": info.bits_per_parameter}


def _of_update(data: bytes) -> dict[str, Any]:
    tag, described, _ = compression.describe(data)
    return {
        "parameters": described.parameters,
        "total_bytes": len(data),
        "bits_per_parameter": 8 * len(data) / max(1, described.parameters),
        "tag": tag.hex(),
        "arrays": {one.name: f"{list(one.shape)} {one.kind}" for one in described.arrays},
    }
