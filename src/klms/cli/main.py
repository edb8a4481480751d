"""The `klms` command with all its subcommands, and `klms inspect`."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

import klms
from klms.cli import bench, data, experiment, flower, learn, report
from klms.cli.show import console, fail
from klms.errors import KLMSError


class _Commands(TyperGroup):
    """The commands; an error that klms raises on purpose, or one of a file, ends any of them with one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
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
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(learn.run)
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
def inspect(
    file: Annotated[Path, typer.Argument(help="File that holds one message.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the header of a message, for which neither `p` nor the key is needed.

    Example: `klms inspect client-3.klms`
    """
    try:
        info = klms.inspect(file.read_bytes())
    except KLMSError as error:
        raise fail(f"{file}: {error}") from error
    fields = dataclasses.asdict(info) | {"tag": info.tag.hex(), "bits_per_parameter": info.bits_per_parameter}
    if as_json:
        typer.echo(json.dumps(fields, indent=2))
        return
    table = Table(box=None, show_header=False)
    for name, value in fields.items():
        shown = f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
        table.add_row(name.replace("_", " "), shown)
    console().print(table)
