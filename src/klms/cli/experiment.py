"""`klms experiment`: the paper's tables and figures by name."""

from collections.abc import Container
from pathlib import Path
from typing import Annotated

import typer

from klms.cli import completion
from klms.cli.show import need, progress, say, show_table, stoppable

Name = Annotated[
    str,
    typer.Argument(help="Name of an experiment, see `klms experiment list`.", autocompletion=completion.experiments),
]
Runs = Annotated[Path, typer.Option(help="Folder of the runs.")]
Only = Annotated[list[str] | None, typer.Option(help="Only this row or method; may be repeated.")]
Data = Annotated[
    list[str] | None,
    typer.Option(help="Use this data set instead; may be repeated.", autocompletion=completion.data_sets),
]
Profile = Annotated[
    str,
    typer.Option(
        help="small (up to an hour on two cores), cpu (a day) or paper (for a GPU).",
        autocompletion=completion.profiles,
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds; some rows of the small profile have one only.")]

app = typer.Typer(help="Repeat the paper's experiments.", no_args_is_help=True, rich_markup_mode="markdown")


@app.command("list")
def list_() -> None:
    """List every experiment with its place in the paper.

    Example: `klms experiment list`
    """
    from klms.experiments import catalogue, toy

    rows = []
    for name in catalogue.names():
        if name in toy.TOYS:
            rows.append((name, toy.TOYS[name].title, "appendix F.1", ""))
        else:
            experiment = catalogue.load(name)
            rows.append((name, experiment.title, experiment.paper, str(len(experiment.cells("small")))))
    show_table(("name", "what it shows", "in the paper", "runs, small"), rows, right=["runs, small"])


@app.command("run")
def run(
    name: Name,
    profile: Profile = "small",
    data: Data = None,
    only: Only = None,
    seeds: Seeds = 3,
    workers: Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")] = 2,
    runs: Runs = Path("runs/experiments"),
    results: Annotated[Path, typer.Option(help="Folder of the results file.")] = Path("results"),
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with the data set in its official format, or with one such folder per data set."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=0, help="End every run after this many rounds; 0 for no limit.")] = 0,
) -> None:
    """Run what is not complete, and write the results file. After an interruption, the same command resumes.

    Examples: `klms experiment run table1`, `klms experiment run table2 --only fedpm-klms --seeds 1`
    """
    from klms.experiments import catalogue, grid, toy
    from klms.experiments import results as committed

    if name in toy.TOYS:
        say(f"written: {committed.write_json(results / committed.file_name(name), toy.TOYS[name].run())}")
        return
    need("torch", "learn")
    experiment = catalogue.load(name)
    cells = experiment.cells(profile, data=_split(data), only=_split(only, experiment.rows), seeds=seeds)
    folder = runs / profile / name
    whole = cells == experiment.cells("small") and data_dir is None and not rounds
    if data_dir is not None:
        cells, folder = [cell.with_data_from(data_dir) for cell in cells], runs / f"{profile}-own-data" / name
    if rounds:
        cells, folder = [cell.with_at_most(rounds) for cell in cells], folder / f"{rounds}-rounds"
    complete = sum(found.complete for found in grid.status(cells, folder))
    say(f"{len(cells)} runs in {folder}, {complete} of them complete")
    with stoppable("the same command resumes from here"), progress(bar=True) as shown:
        task = shown.add_task(name, total=len(cells), completed=complete)

        def report(cell: catalogue.Cell) -> None:
            shown.update(task, advance=1)
            say(f"complete: {cell}")

        grid.run_cells(cells, folder, workers=workers, report=report)
    path = results / committed.file_name(name) if whole else folder / "results.json"
    say(f"written: {committed.write_json(path, grid.collect(experiment, cells, folder))}")


@app.command("status")
def status(
    name: Name,
    profile: Profile = "small",
    data: Data = None,
    only: Only = None,
    seeds: Seeds = 3,
    runs: Runs = Path("runs/experiments"),
) -> None:
    """Show how many rounds of every run are complete.

    Example: `klms experiment status table1`
    """
    from klms.experiments import catalogue, grid

    experiment = catalogue.load(name)
    cells = experiment.cells(profile, data=_split(data), only=_split(only, experiment.rows), seeds=seeds)
    found = grid.status(cells, runs / profile / name)
    rows = []
    for one in found:
        state = "complete" if one.complete else "started" if one.rounds else "waiting"
        cell = one.cell
        rows.append((cell.row, cell.data, str(cell.seed), f"{one.rounds} of {cell.config.rounds}", state))
    show_table(("row", "data", "seed", "rounds", ""), rows, title=f"{name}, {profile}", right=("seed", "rounds"))
    say(f"{sum(one.complete for one in found)} of {len(found)} complete")


def _split(given: list[str] | None, known: Container[str] = ()) -> list[str]:
    """Split what contains several names with commas between them, unless it is itself the name of a row."""
    parts = [[text] if text in known else [part.strip() for part in text.split(",")] for text in given or []]
    return [name for names in parts for name in names]
