"""`klms data`: list data sets and fetch them."""

from pathlib import Path
from typing import Annotated

import typer

from klms import data
from klms.cli.live import Live
from klms.cli.settings import DATA_SETS, completing
from klms.cli.show import say, show_table

app = typer.Typer(help="List data sets, and fetch them.", no_args_is_help=True, rich_markup_mode="markdown")


@app.command("list")
def list_() -> None:
    """List every data set with the packages that hold it.

    Example: `klms data list`
    """
    rows = [(info.name, info.kind, info.description, ", ".join(info.sources)) for info in data.names()]
    show_table(("name", "kind", "description", "sources"), rows)


@app.command("get")
def get(
    name: Annotated[
        str, typer.Argument(help="Name of a data set, see `klms data list`.", autocompletion=completing(DATA_SETS))
    ],
    dir: Annotated[Path | None, typer.Option(help="Read the data set from this folder, in an official format.")] = None,
) -> None:
    """Fetch a data set, check it and keep it in the cache.

    Examples: `klms data get mnist`, `klms data get emnist --dir ~/Downloads/emnist`
    """
    with Live() as live:
        path = data.get(name, progress=lambda what, done, total: live.show(what, done, total or None), folder=dir)
        loaded = data.load(name)
    say(f"{name}: {len(loaded.train_y):,} examples for training, {len(loaded.test_y):,} for testing, in {path}")
