"""`klms data`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from klms import data
from klms.cli.show import console, fail, progress

app = typer.Typer(help="Data sets: which there are, and getting them.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """Every data set by name, and where it comes from."""
    table = Table(box=None)
    for name in ("name", "kind", "what", "sources"):
        table.add_column(name)
    for info in data.names():
        table.add_row(info.name, info.kind, info.description, ", ".join(info.sources))
    console().print(table)


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="One of `klms data list`.")],
    dir: Annotated[Path | None, typer.Option(help="A folder that holds it in an official format.")] = None,
) -> None:
    """Fetch a data set, check it and keep it in the cache.

    Example: `klms data get mnist`
    """
    with progress(bar=True) as shown:
        task = shown.add_task(name, total=None)

        def report(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total or None)

        try:
            path = data.get(name, progress=report, folder=dir)
            loaded = data.load(name)
        except data.DataError as error:
            raise fail(str(error)) from error
    console().print(
        f"{name}: {len(loaded.train_y):,} for training, {len(loaded.test_y):,} for testing, in {path}", highlight=False
    )
