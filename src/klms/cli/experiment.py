"""`klms experiment`: the paper's tables and figures by name."""

from collections.abc import Container
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import klms
from klms.cli.show import console, fail, need_learning, progress

Runs = Annotated[Path, typer.Option(help="Where the runs are.")]
Only = Annotated[list[str] | None, typer.Option(help="A row or a method; may be repeated.")]
Data = Annotated[list[str] | None, typer.Option(help="A data set; may be repeated. The experiment's own by default.")]
Profile = Annotated[str, typer.Option(help="small (minutes to an hour on two cores) or paper (for a GPU).")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds; some rows of the small profile have one.")]

app = typer.Typer(help="The paper's tables and figures by name.", no_args_is_help=True, rich_markup_mode="markdown")


@app.command("list")
def list_() -> None:
    """Every experiment, with the place in the paper that it is."""
    need_learning()
    from klms.experiments import catalogue, toy

    table = Table(box=None)
    for column in ("name", "what it shows", "in the paper", "runs, small"):
        table.add_column(column, justify="right" if column.startswith("runs") else "left")
    for name in catalogue.names():
        if name in toy.TOYS:
            table.add_row(name, toy.TOYS[name].title, "appendix F.1", "")
        else:
            experiment = catalogue.load(name)
            count = str(len(experiment.cells("small")))
            table.add_row(name, experiment.title, str(experiment.content["paper"]), count)
    console().print(table)


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(help="One of `klms experiment list`.")],
    profile: Profile = "small",
    data: Data = None,
    only: Only = None,
    seeds: Seeds = 3,
    workers: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 2,
    runs: Runs = Path("runs/experiments"),
    results: Annotated[Path, typer.Option(help="Where the results file goes.")] = Path("results"),
    data_dir: Annotated[
        Path | None, typer.Option(help="A folder with the data in its official format, or with one such folder a set.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=0, help="End every run after so many rounds; 0: when it is done.")] = 0,
) -> None:
    """Run what is not finished, and write the results file. Stop it whenever you like: it goes on where it was.

    Examples: `klms experiment run table1`, `klms experiment run table2 --only fedpm-klms --seeds 1`
    """
    need_learning()
    from klms.data import DataError
    from klms.experiments import catalogue, runner, toy
    from klms.experiments import results as written

    try:
        if name in toy.TOYS:
            _done(written.write_json(results, name, toy.TOYS[name].run()))
            return
        experiment = catalogue.load(name)
        cells = experiment.cells(profile, data=_split(data), only=_split(only, experiment.rows), seeds=seeds)
        folder = runs / profile / name
        whole = cells == experiment.cells("small") and data_dir is None and not rounds
        if data_dir is not None:
            cells, folder = [cell.reading(data_dir) for cell in cells], runs / f"{profile}-own-data" / name
        if rounds:
            cells, folder = [cell.shortened(rounds) for cell in cells], folder / f"{rounds}-rounds"
        before = runner.standing(cells, folder)
        finished = sum(place.done for place in before)
        console().print(f"{len(cells)} runs, {finished} of them finished; they are in {folder}", highlight=False)
        with progress(bar=True) as shown:
            task = shown.add_task(name, total=len(cells), completed=finished)

            def report(cell: catalogue.Cell) -> None:
                shown.update(task, advance=1)
                console().print(f"done: {cell.row}, {cell.data}, seed {cell.seed}", highlight=False)

            runner.run(cells, folder, workers=workers, report=report)
        if whole:
            _done(written.write_json(results, name, runner.collect(experiment, cells, folder)))
        else:
            _done(runner.write_beside(experiment, cells, folder))
    except (DataError, ValueError, klms.KLMSError) as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt:
        raise fail("stopped; the same command goes on from here") from None


@app.command("status")
def status(
    name: Annotated[str, typer.Argument(help="One of `klms experiment list`.")],
    profile: Profile = "small",
    data: Data = None,
    only: Only = None,
    seeds: Seeds = 3,
    runs: Runs = Path("runs/experiments"),
) -> None:
    """How far every run is.

    Example: `klms experiment status table1`
    """
    need_learning()
    from klms.experiments import catalogue, runner
    from klms.experiments.settings import SettingsError

    try:
        experiment = catalogue.load(name)
        cells = experiment.cells(profile, data=_split(data), only=_split(only, experiment.rows), seeds=seeds)
    except SettingsError as error:
        raise fail(str(error)) from error
    table = Table(title=f"{name}, {profile}")
    for column in ("row", "data", "seed", "rounds", ""):
        table.add_column(column, justify="right" if column in ("seed", "rounds") else "left")
    places = runner.standing(cells, runs / profile / name)
    for place in places:
        state = "done" if place.done else "begun" if place.rounds else "waiting"
        cell = place.cell
        table.add_row(cell.row, cell.data, str(cell.seed), f"{place.rounds} of {cell.config.rounds}", state)
    console().print(table)
    console().print(f"{sum(place.done for place in places)} of {len(places)} done", highlight=False)


def _split(given: list[str] | None, known: Container[str] = ()) -> list[str]:
    """Names as given, and several in one with commas between; a row's own name may have a comma."""
    parts = [[text] if text in known else [part.strip() for part in text.split(",")] for text in given or []]
    return [name for names in parts for name in names]


def _done(path: Path) -> None:
    console().print(f"written: {path}", highlight=False)
