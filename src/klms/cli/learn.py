"""`klms methods`, `klms run`, `klms demo`, `klms export`, `klms results`: what needs torch."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

import klms
from klms.cli.show import console, fail, need_learning, progress

if TYPE_CHECKING:
    from klms.experiments.run import Summary
    from klms.methods.config import RunConfig


def register(app: typer.Typer) -> None:
    """Put the commands into the application."""
    app.command()(methods)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(run)
    app.command()(demo)
    app.command()(export)
    app.command()(results)


def methods() -> None:
    """Every method by name, with its paper."""
    need_learning()
    from klms.methods.registry import METHODS

    table = Table(box=None)
    for name in ("name", "what it does", "paper"):
        table.add_column(name)
    for entry in METHODS.values():
        table.add_row(entry.name, entry.title, entry.paper)
    console().print(table)


def run(
    context: typer.Context,
    method: Annotated[str | None, typer.Argument(help="One of `klms methods`.")] = None,
    profile: Annotated[str | None, typer.Option(help="Settings by name: small or paper.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as a TOML file.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the run; runs/METHOD-SEED by default.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that run clients side by side.")] = 1,
    track: Annotated[list[str] | None, typer.Option(help="Also log to tensorboard, wandb or mlflow.")] = None,
) -> None:
    """Train a method, with real bytes between clients and server.

    Every setting is an option: `--rounds 20`, `--lr 0.05`, `--bits 8`; an unknown one is told with the nearest name.

    Examples: `klms run fedpm-klms --profile small --workers 2`, `klms run qsgd --data mnist --levels 4`,
    `klms run --resume runs/fedpm-klms-0`
    """
    need_learning()
    from klms.data import DataError
    from klms.experiments import run as running
    from klms.experiments.run_folder import RunFolder
    from klms.experiments.settings import SettingsError, parse_options, resolve
    from klms.experiments.trackers import tracked

    folder = resume
    try:
        if resume is not None:
            if method or profile or config or out or context.args:
                raise SettingsError("a resumed run keeps its settings: --resume goes with --workers and --track only")
            with _Live() as live, tracked(track or [], resume, RunFolder(resume).config(), live) as report:
                summary = running.resume(resume, workers=workers, progress=report)
        else:
            if method is None:
                raise SettingsError("name a method (see `klms methods`), or --resume a run")
            settings = resolve(method, profile=profile, file=config, given=parse_options(context.args))
            folder = out or Path("runs") / f"{method}-{settings.seed}"
            with _Live() as live, tracked(track or [], folder, settings, live) as report:
                summary = running.start(settings, folder, workers=workers, progress=report)
    except (DataError, ValueError, klms.KLMSError) as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt:
        raise fail(f"stopped; go on with: klms run --resume {folder}") from None
    show_summaries([summary], title=f"{summary.rounds} rounds in {folder}")


class _Live:
    """A bar on a terminal, a line a round elsewhere."""

    def __init__(self) -> None:
        self._bar = progress(bar=True)
        self._plain = Console(stderr=True, width=200)
        self._sent = 0
        self._accuracy = ""

    def __enter__(self) -> Callable[["RunConfig", Mapping[str, object]], None]:
        self._bar.start()
        self._task = self._bar.add_task("loading", total=None)
        self._started = time.monotonic()
        return self._report

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _report(self, config: "RunConfig", record: Mapping[str, object]) -> None:
        if record["round"] == 1:  # the next of several runs
            self._sent, self._accuracy = 0, ""
        self._sent += int(str(record["uplink_bytes"]))
        if "accuracy" in record:
            self._accuracy = f" accuracy {float(str(record['accuracy'])):.4f}"
        rate = float(str(record["bits_per_parameter"]))
        text = f"{config.method}:{self._accuracy} {rate:.4f} bits/parameter, {self._sent / 1e6:,.3f} MB up"
        self._bar.update(self._task, description=text, completed=int(str(record["round"])), total=config.rounds)
        if not self._plain.is_terminal:
            seconds = time.monotonic() - self._started
            self._plain.print(f"round {record['round']}/{config.rounds} {text}, {seconds:.0f} s", highlight=False)


def show_summaries(summaries: "list[Summary]", title: str) -> None:
    """A table, a row a run."""
    table = Table(title=title)
    for name in ("method", "accuracy", "bits/parameter", "MB up", "times smaller", "coding", "seconds"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for summary in summaries:
        table.add_row(
            summary.method,
            f"{summary.metrics['accuracy']:.4f}",
            f"{summary.bits_per_parameter:.4f}",
            f"{summary.uplink_bytes / 1e6:,.3f}",
            f"{32 / summary.bits_per_parameter:,.0f}",
            f"{summary.encode_share:.1%}",
            f"{summary.seconds:.0f}",
        )
    console().print(table)


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the picture go.")] = Path("runs/demo"),
    rounds: Annotated[int, typer.Option(min=1)] = 12,
) -> None:
    """FedAvg, FedPM and FedPM-KLMS on real MNIST, at equal rounds: a table and a picture.

    Example: `klms demo --rounds 20`
    """
    need_learning()
    from klms.data import DataError
    from klms.experiments import demo as showing

    try:
        with _Live() as report:
            summaries = showing.run(out, rounds=rounds, workers=os.cpu_count() or 1, progress=report)
    except DataError as error:
        raise fail(str(error)) from error
    show_summaries(summaries, title=f"MNIST, LeNet, 10 clients, {rounds} rounds")
    picture = showing.draw(out)
    console().print(f"picture: {picture}" if picture else "for a picture: pip install 'klms[plots]'", highlight=False)


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    out: Annotated[Path | None, typer.Option(help="The file; RUN/model.klms by default.")] = None,
) -> None:
    """Write the final model of a run: for FedPM its seed and mask, for the others float32 weights.

    Example: `klms export runs/fedpm-klms-0`; then, in Python, `klms.experiments.export.load("model.klms")`
    """
    need_learning()
    from klms.experiments.export import write
    from klms.experiments.settings import SettingsError

    try:
        file = write(run, out or run / "model.klms")
    except SettingsError as error:
        raise fail(str(error)) from error
    console().print(f"{file}: {file.stat().st_size:,} bytes", highlight=False)


def results(
    measure: Annotated[
        bool, typer.Option("--measure", help="First measure coding's share and mean estimation.")
    ] = False,
    runs: Annotated[Path, typer.Option(help="The folder of the runs that --measure makes.")] = Path("runs"),
) -> None:
    """Write docs/results.md, its pictures and the README's table from the JSON under results/.

    `klms experiment run NAME` makes that JSON. Examples: `klms results`, `klms results --measure`
    """
    need_learning()
    from klms.benchmarks import mean
    from klms.experiments import coding_share
    from klms.experiments import results as written

    folder = Path("results")
    if measure:
        with _Live() as report:
            written.write_json(folder, "coding-share", coding_share.run(runs, 1, report))
        written.write_json(folder, "mean", mean.as_json(list(mean.run()), clients=10))
    try:
        text, readme = written.document(folder), written.readme(folder, Path("README.md").read_text())
    except FileNotFoundError as error:
        raise fail(f"{error.filename} is not there: run this in the repository, after `klms experiment run`") from error
    Path("docs/results.md").write_text(text)
    Path("README.md").write_text(readme)
    written.draw(folder, written.FIGURES)
    console().print(f"docs/results.md, README.md, {written.FIGURES}", highlight=False)
