"""`klms methods`, `klms run`, `klms demo`, `klms export` and `klms results`."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from klms.cli.show import console, fail, need, need_learning, progress, say
from klms.errors import InvalidArgument, KLMSError, MissingExtra

if TYPE_CHECKING:
    from klms.engine.ledger import LedgerRecord
    from klms.methods.config import RunConfig
    from klms.runs.execution import Progress, Summary


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(methods)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(run)
    app.command()(demo)
    app.command()(export)
    app.command()(results)


def methods(
    name: Annotated[str | None, typer.Argument(help="Name of a method, to list its settings instead.")] = None,
) -> None:
    """List every method with the paper that describes it, or the settings of one method with their defaults.

    Examples: `klms methods`, `klms methods fedpm-klms`
    """
    from klms.compressors.scheme import Settings
    from klms.methods.entry import RunSettings
    from klms.methods.table import METHODS
    from klms.runs.settings import resolve

    table = Table(box=None)
    for column in ("name", "what it does", "reference") if name is None else ("setting", "default", "description"):
        table.add_column(column)
    if name is None:
        for entry in METHODS.values():
            table.add_row(entry.name, entry.title, entry.reference)
    else:
        try:
            defaults = resolve(name).model_dump(mode="json", exclude={"method"})
        except KLMSError as error:
            raise fail(error) from error
        kinds: list[type[Settings]] = [RunSettings, *METHODS[name].settings]
        fields = {setting: field for kind in kinds for setting, field in kind.model_fields.items()}
        for setting, default in defaults.items():
            if setting in fields:
                shown = "" if default is None else str(default)
                table.add_row(f"--{setting.replace('_', '-')}", shown, fields[setting].description)
    console().print(table)


def run(
    context: typer.Context,
    method: Annotated[str | None, typer.Argument(help="Name of a method, see `klms methods`.")] = None,
    profile: Annotated[str | None, typer.Option(help="Take the settings of this profile: small or paper.")] = None,
    config: Annotated[Path | None, typer.Option(help="Take settings from this TOML file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/METHOD-SEED by default.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes that train clients.")] = 1,
    track: Annotated[list[str] | None, typer.Option(help="Also log to tensorboard, wandb or mlflow.")] = None,
) -> None:
    """Train with a method, sending real bytes between clients and server.

    Every setting is an option as well, for instance `--rounds 20` or `--lr 0.05`; `klms methods METHOD` lists them.

    Examples: `klms run fedpm-klms --profile small --workers 2`, `klms run qsgd --data mnist --levels 4`,
    `klms run --resume runs/fedpm-klms-0`
    """
    need_learning()
    from klms.runs import execution
    from klms.runs.run_folder import RunFolder
    from klms.runs.settings import parse_options, resolve
    from klms.runs.trackers import tracked

    folder = resume
    try:
        if resume is not None:
            if method or profile or config or out or context.args:
                raise InvalidArgument("a resumed run keeps its settings: combine --resume only with --workers, --track")
            with _Live() as live, tracked(track or [], resume, RunFolder(resume).config(), live) as report:
                summary = execution.resume(resume, workers=workers, progress=report)
        else:
            if method is None:
                raise InvalidArgument("name a method (see `klms methods`), or --resume a run")
            settings = resolve(method, profile=profile, file=config, given=parse_options(context.args))
            folder = out or Path("runs") / f"{method}-{settings.seed}"
            RunFolder.check_free(folder)
            with _Live() as live, tracked(track or [], folder, settings, live) as report:
                summary = execution.start(settings, folder, workers=workers, progress=report)
    except (KLMSError, OSError) as error:
        raise fail(error) from error
    except KeyboardInterrupt:
        raise fail(f"stopped; resume with: klms run --resume {folder}") from None
    _show_summaries([summary], title=f"{summary.rounds} rounds in {folder}")


class _Live:
    """Shows the progress of runs: a bar on a terminal, one line per round elsewhere."""

    def __init__(self) -> None:
        self._bar = progress(bar=True)
        self._plain = Console(stderr=True, width=200)
        self._sent = 0
        self._accuracy = ""

    def __enter__(self) -> "Progress":
        self._bar.start()
        self._task = self._bar.add_task("loading", total=None)
        self._started = time.monotonic()
        return self._report

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _report(self, config: "RunConfig", record: "LedgerRecord") -> None:
        if record.round == 1:  # another run begins
            self._sent, self._accuracy = 0, ""
        self._sent += record.uplink_bytes
        if record.accuracy is not None:
            self._accuracy = f" accuracy {record.accuracy:.4f}"
        rate = f"{record.bits_per_parameter:.4f} bits per parameter"
        text = f"{config.method}:{self._accuracy} {rate}, {self._sent / 1e6:,.3f} MB up"
        self._bar.update(self._task, description=text, completed=record.round, total=config.rounds)
        if not self._plain.is_terminal:
            seconds = time.monotonic() - self._started
            self._plain.print(f"round {record.round}/{config.rounds} {text}, {seconds:.0f} s", highlight=False)


def _show_summaries(summaries: "list[Summary]", title: str) -> None:
    table = Table(title=title)
    columns = ("method", "accuracy", "bits per parameter", "MB up", "x smaller than float32", "coding", "seconds")
    for name in columns:
        table.add_column(name, justify="left" if name == "method" else "right")
    for summary in summaries:
        bits, share = summary.bits_per_parameter, summary.coding_share
        table.add_row(
            summary.method,
            f"{summary.metrics['accuracy']:.4f}" if "accuracy" in summary.metrics else "",
            f"{bits:.4f}",
            f"{summary.uplink_bytes / 1e6:,.3f}",
            f"{32 / bits:,.0f}" if bits else "",
            "" if share is None else f"{share:.1%}",
            f"{summary.seconds:.0f}",
        )
    console().print(table)


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and of the picture.")] = Path("runs/demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 12,
) -> None:
    """Compare FedAvg, FedPM and FedPM-KLMS on real MNIST, in a table and a picture.

    Example: `klms demo --rounds 20`
    """
    need_learning()
    from klms.experiments import demo as comparison

    try:
        with _Live() as report:
            summaries = comparison.run(out, rounds=rounds, workers=os.cpu_count() or 1, progress=report)
        _show_summaries(summaries, title=f"MNIST, LeNet, 10 clients, {rounds} rounds")
        say(f"picture: {comparison.draw(out, rounds)}")
    except MissingExtra as error:
        say(str(error))
    except (KLMSError, OSError) as error:
        raise fail(error) from error
    except KeyboardInterrupt:
        raise fail("stopped; the same command resumes from here") from None


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path | None, typer.Option(help="File to write; RUN/model.klms by default.")] = None,
) -> None:
    """Write the final model of a run to a file: a seed and a mask for FedPM, float32 weights otherwise.

    Example: `klms export runs/fedpm-klms-0`; then, in Python, `klms.runs.export.load("model.klms")`
    """
    need_learning()
    from klms.runs.export import write

    try:
        file = write(run, out or run / "model.klms")
    except (KLMSError, OSError) as error:
        raise fail(error) from error
    say(f"{file}: {file.stat().st_size:,} bytes")


def results(
    measure: Annotated[
        bool, typer.Option("--measure", help="First measure the cost of coding and mean estimation.")
    ] = False,
    runs: Annotated[Path, typer.Option(help="Folder of the runs that --measure makes.")] = Path("runs"),
) -> None:
    """Write docs/results.md, its pictures and the table of the README from the JSON files in results/.

    `klms experiment run NAME` writes those JSON files.

    Examples: `klms results`, `klms results --measure`
    """
    from klms.benchmarks import mean
    from klms.experiments import coding_share
    from klms.experiments import results as committed

    need("matplotlib", "plots")
    folder = Path("results")
    try:
        if measure:
            need_learning()
            with _Live() as report:
                committed.write_json(folder, "coding-share", coding_share.run(runs, 1, report))
            committed.write_json(folder, "mean", mean.as_json(list(mean.run()), clients=10))
        text, readme = committed.document(folder), committed.readme(folder, Path("README.md").read_text())
        Path("docs/results.md").write_text(text)
        Path("README.md").write_text(readme)
        committed.draw(folder, committed.FIGURES)
    except FileNotFoundError as error:
        raise fail(f"there is no {error.filename}: run this in the repository, after `klms experiment run`") from error
    except (KLMSError, OSError) as error:
        raise fail(error) from error
    say(f"written: docs/results.md, README.md, {committed.FIGURES}")
