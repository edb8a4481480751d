"""The command line as a page: every command with its arguments and options, as the program itself declares them."""

from collections.abc import Iterator

import click
import typer.main

from klms.cli import app
from klms.cli.settings import TakesSettings, setting_groups
from klms.experiments.tables import table

MARK = "<!-- commands -->"
"""What docs/command-line.md has in the place of the commands."""


def document() -> str:
    """Return the commands as Markdown, in alphabetical order."""
    return "\n".join(_command(["klms"], typer.main.get_command(app)))


def _command(path: list[str], command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(path))
    if len(path) > 1:
        yield f"## {' '.join(path)}\n"
        yield f"```\n{' '.join([*path, *command.collect_usage_pieces(context)])}\n```\n"
        yield f"{command.help or ''}\n"
        yield from _parameters(command)
    if isinstance(command, TakesSettings):
        for title, rows in setting_groups(None):
            yield f"**{title}:**\n"
            cells = [(f"`{option}`", default, allowed, meaning) for option, default, allowed, meaning in rows]
            yield f"{table(('setting', 'default', 'range', 'meaning'), map(_escaped, cells))}\n"
        yield "`klms run METHOD --help` adds the settings of a method, with its own defaults.\n"
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _command([*path, name], command.commands[name])


def _parameters(command: click.Command) -> Iterator[str]:
    rows = []
    for one in command.params:
        if isinstance(one, click.Option):
            name = ", ".join(f"`{option}`" for option in (*one.opts, *one.secondary_opts))
        else:
            name = f"`{one.make_metavar(click.Context(command))}`"
        rows.append(_escaped((name, _default(one), getattr(one, "help", "") or "")))
    if rows:
        yield f"{table(('argument or option', 'default', 'meaning'), rows)}\n"


def _default(parameter: click.Parameter) -> str:
    value = parameter.default
    return "" if value is None or value is False or callable(value) else str(value)


def _escaped(cells: tuple[str, ...]) -> list[str]:
    return [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
