"""`klms methods`, `klms run`, `klms demo`, `klms export` and `klms results`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from klms.benchmarks import mean
from klms.cli.live import Live, megabytes, show_summaries
from klms.cli.settings import PROFILE, completing, settings_given, show_settings
from klms.cli.show import fail, load, need, say, show_table, stoppable
from klms.errors import InvalidArgument, MissingExtra
from klms.experiments import coding_share, pictures, results_file
from klms.experiments import demo as comparison
from klms.experiments import results as committed
from klms.methods.table import METHODS
from klms.numerics.parallel import cores
from klms.runs import execution
from klms.runs.export import write
from klms.runs.run_files import CONFIG
from klms.runs.run_folder import RunFolder
from klms.runs.settings import PRESETS, check_built_in, check_effects, resolve
from klms.runs.trackers import tracked

_METHODS = completing(METHODS)


def methods(
    name: Annotated[
        str | None, typer.Argument(help="Name of a method, to list its settings instead.", autocompletion=_METHODS)
    ] = None,
) -> None:
    """List every method with the paper that describes it, or the settings of one method with their defaults.

    Examples: `klms methods`, `klms methods fedpm-klms`
    """
    if name is not None:
        show_settings(name)
        return
    entries = [(entry.name, entry.title, entry.reference) for entry in METHODS.values()]
    show_table(("name", "what it does", "reference"), entries)


def run(
    context: typer.Context,
    method: Annotated[
        str | None, typer.Argument(help="Name of a method, see `klms methods`.", autocompletion=_METHODS)
    ] = None,
    profile: Annotated[str | None, PROFILE] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Set the codec by name: paper is the paper's own rule.", autocompletion=completing(PRESETS)),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Take settings from this TOML file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/METHOD-SEED by default.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes that train clients.")] = 1,
    track: Annotated[list[str] | None, typer.Option(help="Also log to tensorboard, wandb or mlflow.")] = None,
) -> None:
    """Train with a method, sending real bytes between clients and server.

    Every setting is also an option, such as `--rounds 20` or `--lr 0.05`; `klms run METHOD --help` lists them.
    A resumed run keeps its settings; with more `--rounds`, a finished run is extended.

    Examples: `klms run fedpm-klms --profile small --workers 2`, `klms run qsgd --data mnist --levels 4`,
    `klms run --resume runs/fedpm-klms-0 --rounds 60`
    """
    if method is not None and method.startswith("--"):  # without a method, click mistakes the first setting for it
        context.args.insert(0, method)
        method = None
    given = settings_given(context)
    if resume is not None:
        if method or profile or preset or config or out or given.keys() - {"rounds"}:
            raise InvalidArgument(
                "a resumed run keeps its settings: combine --resume only with --rounds, --workers and --track"
            )
        folder = resume
        settings = RunFolder(folder).config()
        if "rounds" in given:
            settings = resolve(settings.method, given={**dict(settings), **given})
            RunFolder(folder).extend(settings)
        if RunFolder(folder).complete():
            done = RunFolder(folder).rounds()
            advice = "; --rounds extends it" if done == settings.rounds else ""
            say(f"the run is complete after {done} rounds{advice}")
    elif method is None:
        raise InvalidArgument("name a method (see `klms methods`), or --resume a run")
    else:
        settings = resolve(method, profile=profile, preset=preset, file=config, given=given)
        check_effects(settings, given)
        check_built_in(settings, given)
        folder = out or Path("runs") / f"{method}-{settings.seed}"
        RunFolder.check_free(folder)
    need("torch", "learn")
    load("torch")
    with Live() as live:
        live.begin(settings, folder)
        advice = f"resume with: klms run --resume {folder}"
        with tracked(track or [], folder, settings, live) as report, stoppable(advice, once=folder / CONFIG):
            summary = execution.start_or_resume(settings, folder, workers=workers, progress=report)
    show_summaries([summary], title=f"{summary.rounds} rounds in {folder}")


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and of the picture.")] = Path("runs/demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 10,
) -> None:
    """Compare FedAvg, dense updates at 0.1 bits and FedPM-KLMS on real MNIST: accuracy, bytes up, down and in total.

    Example: `klms demo --rounds 20`
    """
    need("torch", "learn")
    configs = comparison.configs(out, rounds)
    methods = ", ".join(config.method for config in configs.values())
    say(f"Training LeNet on 6,000 images of MNIST with 10 clients, {rounds} rounds each: {methods}.")
    load("torch")
    summaries = []
    with stoppable("the same command resumes from here"):
        for folder, config in configs.items():
            with Live() as live:
                live.begin(config, folder)
                found = comparison.run(config, folder, workers=cores(), progress=live)
            summaries.append(found)
            sent = f"{megabytes(found.uplink_bytes)} up, {megabytes(found.downlink_bytes)} down"
            say(f"{found.method}: accuracy {found.metrics['accuracy']:.4f} on all test images; MB: {sent}")
            if len(summaries) > 1:  # the first two are worth showing before the last is complete
                so_far = "" if len(summaries) == len(configs) else ", so far"
                show_summaries(summaries, title=f"MNIST, LeNet, 10 clients, {rounds} rounds{so_far}")
    say("accuracies: on all 10,000 test images in this table; on the first 1,000 in rounds, picture and report")
    try:
        runs = {config.method: list(RunFolder(folder).records()) for folder, config in configs.items()}
        pictures.demo(runs, out / "demo.png")
        say(f"picture: {out / 'demo.png'}")
    except MissingExtra as error:
        say(str(error))
    say(f"next: klms report {out}, which writes a page with all runs below that folder")


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path | None, typer.Option(help="File to write; RUN/model.klms by default.")] = None,
) -> None:
    """Write the final model of a run to a file: a seed and a mask for FedPM, float32 weights otherwise.

    Example: `klms export runs/fedpm-klms-0`; then, in Python, `klms.runs.export.load("model.klms")`
    """
    need("torch", "learn")
    file = write(run, out or run / "model.klms")
    say(f"{file}: {file.stat().st_size:,} bytes")
    if not RunFolder(run).complete():
        reached = f"{RunFolder(run).rounds()} of {RunFolder(run).config().rounds} rounds"
        say(f"the run is not finished: this is its model after {reached} (klms run --resume {run})")


def results(
    measure: Annotated[
        bool, typer.Option("--measure", help="First measure the cost of coding and mean estimation.")
    ] = False,
) -> None:
    """Write docs/results.md, docs/peers.md, docs/zoo.md, pictures and the README's table from the files in results/.

    `klms experiment run NAME` writes those JSON files.

    Examples: `klms results`, `klms results --measure`
    """
    need("matplotlib", "plots")
    folder = Path("results")
    try:
        if measure:
            need("torch", "learn")
            with Live() as live:
                results_file.write_json(folder / "coding-share.json", coding_share.run(Path("runs"), live))
            rows = [asdict(row) for row in mean.run(clients=10)]
            results_file.write_json(folder / "mean.json", {"clients": 10, "rows": rows})
        text = committed.document(folder)
        readme = committed.readme(folder, Path("README.md").read_text())
        peers = committed.peers_page(folder, Path("docs/peers.md").read_text())
        zoo = committed.zoo(folder)
        Path("docs/results.md").write_text(text)
        Path("docs/zoo.md").write_text(zoo)
        Path("README.md").write_text(readme)
        Path("docs/peers.md").write_text(peers)
        committed.draw(folder, committed.FIGURES)
    except FileNotFoundError as error:
        raise fail(f"there is no {error.filename}: run this in the repository, after `klms experiment run`") from error
    say(f"written: docs/results.md, docs/peers.md, docs/zoo.md, README.md, {committed.FIGURES}")
