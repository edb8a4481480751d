"""The `klms` command with all its subcommands, and `klms inspect`."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import klms
from klms import signals
from klms.cli import bench, data, experiment, flower, learn, report, tensors
from klms.cli.live import Live
from klms.cli.settings import ANY_OPTION, TakesSettings
from klms.cli.show import fail, say, show_fields, stopped
from klms.compressors.warmup import compile_kernels
from klms.errors import KLMSError
from klms.runs import inspection


class _Commands(TyperGroup):
    """The commands; a `KLMSError` or a file error ends a command with one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with signals.stopping(at_once=False):
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
for command in (learn.demo, learn.export, learn.results, report.report, report.serve, tensors.encode, tensors.decode):
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
    """Compile all kernels now, once per machine and release, so that no later call waits for compilation.

    Example: `klms warmup`
    """
    started = time.monotonic()
    with Live() as live:
        live.show("compiling")
        for name in compile_kernels():
            live.show(f"compiled {name}")
    say(f"all kernels are compiled ({time.monotonic() - started:.0f} s)")


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="File of a message or of an exported model, or folder of a run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe a message of any scheme or of `klms.compress`, an exported model or a run.

    Neither `p` nor the key is needed. In Python, `klms.inspect` returns the same.

    Examples: `klms inspect client-3.klms`, `klms inspect runs/fedpm-klms-0/model.klms`, `klms inspect runs/qsgd-0`
    """
    fields = inspection.fields(inspection.inspect(file))
    if as_json:
        typer.echo(json.dumps(fields, indent=2))
    else:
        show_fields(fields)
