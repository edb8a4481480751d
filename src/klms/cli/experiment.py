"""`klms experiment`: the paper's tables and figures by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from klms.cli.live import LiveGrid
from klms.cli.settings import DATA_SETS, PROFILE, completing
from klms.cli.show import fail, need, say, show_table, stoppable
from klms.experiments import catalogue, grid, outcomes, results_file, toy
from klms.experiments import results as committed
from klms.experiments.compare import compare as compared
from klms.experiments.diloco import diloco
from klms.experiments.panel import panel

Name = Annotated[
    str,
    typer.Argument(
        help="Name of an experiment, see `klms experiment list`.", autocompletion=completing(catalogue.NAMES)
    ),
]
Profile = Annotated[str, PROFILE]
Runs = Annotated[Path, typer.Option(help="Folder of the runs.")]
Results = Annotated[Path, typer.Option(help="Folder of the results files.")]
Only = Annotated[list[str] | None, typer.Option(help="Use only the row of exactly this name; may be repeated.")]
Method = Annotated[list[str] | None, typer.Option(help="Use only this method's rows, all variants; may be repeated.")]
Data = Annotated[
    list[str] | None,
    typer.Option(
        help="Use this data set instead of the profile's; may be repeated.", autocompletion=completing(DATA_SETS)
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds; a profile may run some rows with one seed only.")]

app = typer.Typer(help="Repeat the paper's experiments.", no_args_is_help=True, rich_markup_mode="markdown")


@app.command("list")
def list_() -> None:
    """List every experiment with its place in the paper.

    Example: `klms experiment list`
    """
    rows = []
    for name in catalogue.NAMES:
        if name in toy.TOYS:
            rows.append((name, toy.TOYS[name].title, "appendix F.1", ""))
        else:
            experiment = catalogue.load(name)
            rows.append((name, experiment.title, experiment.paper, str(len(experiment.cells("small")))))
    rows += [(one.NAME, one.TITLE, "", str(len(one.grid()))) for one in (panel, diloco)]
    show_table(("name", "what it shows", "in the paper", "runs, small"), rows, right=["runs, small"])


@app.command("run")
def run(
    name: Name,
    profile: Profile = "small",
    data: Data = None,
    only: Only = None,
    method: Method = None,
    seeds: Seeds = 3,
    workers: Annotated[int, typer.Option(min=1, help="Number of runs to execute at the same time.")] = 2,
    runs: Runs = catalogue.RUNS,
    results: Results = Path("results"),
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with the data set in its official format, or with one such folder per data set."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=0, help="End every run after this many rounds; 0 for no limit.")] = 0,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace runs with equal settings that the results file already has.")
    ] = False,
) -> None:
    """Execute incomplete runs, and merge complete runs into a results file. The same command resumes after a stop.

    The file is RESULTS/NAME-PROFILE.json. Runs that it already has with equal settings are kept, and `klms experiment
    compare` compares yours with them; a row with other settings is replaced. If runs end early (`--rounds`), or if the
    profile does not include them, the file is results.json in the folder of the runs.

    Torch is limited to AVX2, so that results are equal to every digit on other x86-64 processors. To lift the limit,
    set `ONEDNN_MAX_CPU_ISA=ALL` in the environment: a processor with AVX-512 then trains about a third faster.

    Examples: `klms experiment run table1`, `klms experiment run table1 --only fedpm-klms --only "fedpm-klms, literal"`,
    `klms experiment run table2 --method fedpm-klms --seeds 1`
    """
    if name in (panel.NAME, diloco.NAME):
        _run_named(name, results / committed.file_name(name), only or [], seeds)
        return
    if name in toy.TOYS:
        say(f"written: {results_file.write_json(results / committed.file_name(name), toy.run(name))}")
        return
    need("torch", "learn")
    experiment = catalogue.load(name)
    cells = experiment.cells(
        profile, runs, data=data, only=only, methods=method, seeds=seeds, data_dir=data_dir, rounds=rounds
    )
    folder = experiment.place(runs, profile, rounds)
    file = results / committed.file_name(name, profile)
    if rounds or not experiment.has(cells, profile):
        file = folder / "results.json"
        replace = True

    def merge(some: Sequence[catalogue.Cell]) -> None:
        if changes := str(results_file.commit(file, experiment, profile, some, replace=replace)):
            live.say(f"{file}: {changes}")

    def report(cell: catalogue.Cell) -> None:
        live.end(cell)
        live.say(f"complete: {cell}")
        merge([cell])

    complete = sum(cell.complete for cell in cells)
    say(f"{len(cells)} runs in {folder}, {complete} of them complete")
    with stoppable("the same command resumes from here"), LiveGrid(name, len(cells), complete) as live:
        merge(cells)
        grid.run_cells(cells, workers=workers, report=report, progress=live.round_of)


def _run_named(name: str, file: Path, only: Sequence[str], seeds: int) -> None:
    """Execute the runs that the results file of `panel` or `diloco` lacks, and show its table."""
    need("torch", "learn")
    experiment = panel if name == panel.NAME else diloco
    wanted: Sequence[outcomes.NamedRun] = experiment.grid(seeds=seeds, only=only)
    say(f"{len(wanted)} runs, results in {file}")
    with stoppable("the same command resumes from here"):
        results = outcomes.run_missing(
            name, wanted, file, lambda one, found: say(f"complete: {one}: {experiment.summary(found)}")
        )
    say(experiment.markdown(results))


@app.command("status")
def status(
    name: Name,
    profile: Profile = "small",
    data: Data = None,
    only: Only = None,
    method: Method = None,
    seeds: Seeds = 3,
    runs: Runs = catalogue.RUNS,
) -> None:
    """Show how many rounds of every run are complete.

    Example: `klms experiment status table1`
    """
    experiment = _with_folders(name)
    rows = []
    complete = 0
    for cell in experiment.cells(profile, runs, data=data, only=only, methods=method, seeds=seeds):
        done = cell.rounds()
        state = "started" if done else "waiting"
        if cell.complete:
            state = "complete"
            complete += 1
        rows.append((cell.row, cell.data, str(cell.seed), f"{done} of {cell.config.rounds}", state))
    show_table(("row", "data", "seed", "rounds", ""), rows, title=f"{name}, {profile}", right=("seed", "rounds"))
    say(f"{complete} of {len(rows)} complete")


@app.command("compare")
def compare(
    name: Name,
    profile: Profile = "small",
    runs: Runs = catalogue.RUNS,
    results: Results = Path("results"),
) -> None:
    """Compare finished runs with the committed results, digit by digit. The exit code is 1 if any number differs.

    Example: `klms experiment compare table1`, after `klms experiment run table1 --only fedpm-klms`
    """
    experiment = _with_folders(name)
    file = results / committed.file_name(name, profile)
    if not file.exists():
        raise fail(f"there is no {file} to compare with: run this in the repository, or name the folder with --results")
    found = compared(experiment, profile, runs, results_file.read(file))
    for remark in found.remarks:
        say(f"cannot be compared: {remark}")
    if not found.rows:
        raise fail(f"there is no finished run of {name} (profile {profile}) below {runs} that can be compared")
    lines = [(row.row, row.data, str(row.seeds), *_pair(row.accuracy), *_pair(row.bits)) for row in found.rows]
    numbers = ("accuracy: committed", "yours", "difference", "bits up: committed", "yours", "difference")
    show_table(("row", "data", "seeds", *numbers), lines, title=f"{name}, {profile}", right=("seeds", *numbers))
    say(found.verdict())
    if not found.equal:
        raise typer.Exit(1)


def _with_folders(name: str) -> catalogue.Experiment:
    """Load an experiment whose runs have folders."""
    if name in (panel.NAME, diloco.NAME):
        raise fail(
            f"the runs of {name} have no folders, only a results file: klms experiment run {name} executes the runs "
            "that this file lacks, and shows its table"
        )
    return catalogue.load(name)


def _pair(values: tuple[float, float]) -> tuple[str, str, str]:
    """Return the committed number, this machine's number and their difference, as text."""
    committed, own = values
    return f"{committed:.6f}", f"{own:.6f}", f"{own - committed:+.6f}"
