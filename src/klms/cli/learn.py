"""`klms methods`, `klms run`, `klms demo`, `klms export` and `klms results`."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from klms.cli.show import fail, need, progress, say, show_table, stoppable
from klms.errors import InvalidArgument, MissingExtra

if TYPE_CHECKING:
    from klms.engine.ledger import LedgerRecord
    from klms.methods.table import RunConfig
    from klms.runs.execution import Progress, Summary


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

    if name is None:
        entries = [(entry.name, entry.title, entry.reference) for entry in METHODS.values()]
        show_table(("name", "what it does", "reference"), entries)
        return
    rows = []
    defaults = resolve(name).model_dump(mode="json", exclude={"method"})
    kinds: list[type[Settings]] = [RunSettings, *METHODS[name].settings]
    fields = {setting: field for kind in kinds for setting, field in kind.model_fields.items()}
    for setting, default in defaults.items():
        if setting in fields:
            shown = "" if default is None else str(default)
            rows.append((f"--{setting.replace('_', '-')}", shown, fields[setting].description or ""))
    show_table(("setting", "default", "description"), rows)


def run(
    context: typer.Context,
    method: Annotated[str | None, typer.Argument(help="Name of a method, see `klms methods`.")] = None,
    profile: Annotated[str | None, typer.Option(help="Take the settings of this profile: small or paper.")] = None,
    preset: Annotated[str | None, typer.Option(help="Set the codec by name: paper is the paper's own rule.")] = None,
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
    need("torch", "learn")
    from klms.runs import execution
    from klms.runs.run_folder import RunFolder
    from klms.runs.settings import parse_options, resolve
    from klms.runs.trackers import tracked

    if resume is not None:
        if method or profile or preset or config or out or context.args:
            raise InvalidArgument("a resumed run keeps its settings: combine --resume only with --workers, --track")
        folder, settings = resume, RunFolder(resume).config()
    elif method is None:
        raise InvalidArgument("name a method (see `klms methods`), or --resume a run")
    else:
        settings = resolve(method, profile=profile, preset=preset, file=config, given=parse_options(context.args))
        folder = out or Path("runs") / f"{method}-{settings.seed}"
        RunFolder.check_free(folder)
    try:
        with _live() as live, tracked(track or [], folder, settings, live) as report:
            summary = execution.start_or_resume(settings, folder, workers=workers, progress=report)
    except KeyboardInterrupt:
        raise fail(f"stopped; resume with: klms run --resume {folder}") from None
    _show_summaries([summary], title=f"{summary.rounds} rounds in {folder}")


@contextmanager
def _live() -> Iterator["Progress"]:
    """Show the progress of runs: a bar on a terminal, one line per round elsewhere."""
    plain, started, sent, accuracy = Console(stderr=True, width=200), time.monotonic(), [0, 0], ""

    def report(config: "RunConfig", record: "LedgerRecord") -> None:
        nonlocal sent, accuracy
        if record.round == 1:  # another run begins
            sent, accuracy = [0, 0], ""
        sent = [sent[0] + record.uplink_bytes, sent[1] + record.downlink_bytes]
        if record.accuracy is not None:
            accuracy = f" accuracy {record.accuracy:.4f},"
        rate = f"{record.bits_per_parameter:.4f} bits per parameter up"
        up, down, total = map(_megabytes, (*sent, sum(sent)))
        text = f"{config.method}:{accuracy} MB: {up} up, {down} down, {total} total; {rate}"
        bar.update(task, description=text, completed=record.round, total=config.rounds)
        if not plain.is_terminal:
            seconds = time.monotonic() - started
            plain.print(f"round {record.round}/{config.rounds} {text}, {seconds:.0f} s", highlight=False)

    with progress(bar=True) as bar:
        task = bar.add_task("loading", total=None)
        yield report


def _show_summaries(summaries: "list[Summary]", title: str) -> None:
    """Show one column per run, so that the names of the rows can say what is compared with what."""
    shown = {
        "accuracy": [_number(one.metrics.get("accuracy"), ".4f") for one in summaries],
        "bits per parameter up": [_number(one.bits_per_parameter, ".4f") for one in summaries],
        "MB up": [_megabytes(one.uplink_bytes) for one in summaries],
        "MB down": [_megabytes(one.downlink_bytes) for one in summaries],
        "MB total": [_megabytes(one.total_bytes) for one in summaries],
        "up: x smaller than float32 up": [_number(one.times_smaller_up, ",.1f") for one in summaries],
        "total: x smaller than float32 both ways": [_number(one.times_smaller_total, ",.1f") for one in summaries],
        "encoding and decoding, share of the work": [_number(one.coding_share, ".1%") for one in summaries],
        "seconds": [_number(one.seconds, ".0f") for one in summaries],
    }
    methods = [one.method for one in summaries]
    show_table(("", *methods), [(name, *values) for name, values in shown.items()], title=title, right=methods)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _megabytes(count: int | None) -> str:
    return _number(None if count is None else count / 1e6, ",.3f")


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and of the picture.")] = Path("runs/demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 12,
) -> None:
    """Compare FedAvg, FedPM and FedPM-KLMS on real MNIST: their accuracy, and their bytes up, down and in total.

    Example: `klms demo --rounds 20`
    """
    need("torch", "learn")
    from klms.experiments import demo as comparison

    with stoppable(), _live() as report:
        summaries = comparison.run(out, rounds=rounds, workers=os.cpu_count() or 1, progress=report)
    _show_summaries(summaries, title=f"MNIST, LeNet, 10 clients, {rounds} rounds")
    try:
        say(f"picture: {comparison.draw(out, rounds)}")
    except MissingExtra as error:
        say(str(error))


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path | None, typer.Option(help="File to write; RUN/model.klms by default.")] = None,
) -> None:
    """Write the final model of a run to a file: a seed and a mask for FedPM, float32 weights otherwise.

    Example: `klms export runs/fedpm-klms-0`; then, in Python, `klms.runs.export.load("model.klms")`
    """
    need("torch", "learn")
    from klms.runs.export import write

    file = write(run, out or run / "model.klms")
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
            need("torch", "learn")
            with _live() as report:
                committed.write_json(folder / "coding-share.json", coding_share.run(runs, 1, report))
            committed.write_json(folder / "mean.json", mean.as_json(list(mean.run()), clients=10))
        text, readme = committed.document(folder), committed.readme(folder, Path("README.md").read_text())
        Path("docs/results.md").write_text(text)
        Path("README.md").write_text(readme)
        committed.draw(folder, committed.FIGURES)
    except FileNotFoundError as error:
        raise fail(f"there is no {error.filename}: run this in the repository, after `klms experiment run`") from error
    say(f"written: docs/results.md, README.md, {committed.FIGURES}")
