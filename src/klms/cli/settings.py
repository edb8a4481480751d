"""Settings of runs on the command line: what the help lists, and the command class that lists it."""

from typing import Any, Literal, get_args, get_origin

import typer
from click.shell_completion import CompletionItem
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from klms.cli import completion
from klms.cli.show import say, show_table
from klms.compressors.scheme import shown

_BOUNDS = {"ge": "", "le": "", "gt": "above ", "lt": "below "}  # what pydantic calls bounds, and what they are
ANY_OPTION = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command whose further options are settings."""


def settings_given(context: typer.Context) -> dict[str, str]:
    """Return the options of a command that are settings."""
    from klms.runs.settings import parse_options

    others = [option for parameter in context.command.params for option in parameter.opts]
    return parse_options(context.args, [option.removeprefix("--") for option in others if option.startswith("--")])


class TakesSettings(TyperCommand):
    """A command that takes the settings of a run as options; its help lists them, with those of a method if named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from klms.methods.table import METHODS

        ctx.meta["method"] = next((word for word in args if word in METHODS), None)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        method = ctx.meta["method"]
        show_settings(method)
        if method is None:
            say("\nWith the name of a method, this help lists the settings and the defaults of that method too.")

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        """Complete settings, which click does not know as options, and their values."""
        from klms.methods.table import METHODS, RunConfig

        found = super().shell_complete(ctx, incomplete)
        before = ctx.args[-1] if ctx.args else ""
        entry = METHODS.get(ctx.meta["method"])
        if incomplete.startswith("-"):
            entries = METHODS.values() if entry is None else [entry]
            names = [name for name in RunConfig.model_fields if any(one.uses(name) for one in entries)]
            options = (f"--{name.replace('_', '-')}" for name in names)
            return found + [CompletionItem(option) for option in completion.starting(options, incomplete)]
        return found + [CompletionItem(value) for value in _values(before, incomplete)]


def _values(option: str, incomplete: str) -> list[str]:
    """Return the values of a setting that start so; none for numbers and for paths."""
    from klms.methods.table import RunConfig

    if option == "--data":
        return completion.data_sets(incomplete)
    if option == "--model":
        return completion.models(incomplete)
    field = RunConfig.model_fields.get(option.removeprefix("--").replace("-", "_"))
    return [] if field is None else completion.starting(choices(field), incomplete)


def show_settings(method: str | None) -> None:
    """List settings in groups, with default, range and meaning: those of every run, and of a method if given."""
    from klms.methods.entry import RUN_GROUPS
    from klms.methods.table import METHODS
    from klms.numerics.checks import check_name

    if method is not None:
        check_name("method", method, METHODS)
    own = METHODS[method].overrides if method else {}
    unused = METHODS[method].unused if method else frozenset()
    for kind in METHODS[method].groups if method else RUN_GROUPS:
        rows = []
        for name, field in kind.model_fields.items():
            if name in unused:
                continue
            default = own.get(name, field.default)
            shown = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
            rows.append((f"--{name.replace('_', '-')}", shown, allowed(field), field.description or ""))
        if rows:
            show_table(("setting", "default", "range", "meaning"), rows, title=(kind.__doc__ or "").rstrip("."))


def allowed(field: FieldInfo) -> str:
    """Return the values that a setting can have, in words.

    >>> from klms.methods.entry import RunSettings
    >>> [allowed(RunSettings.model_fields[name]) for name in ("rounds", "down_rate", "optimizer")]
    ['from 1', '0.0001 to 8', 'sgd, momentum, adam']
    """
    if named := choices(field):
        return ", ".join(named)
    bounds = [_in_words(bound) for bound in field.metadata]
    if len(bounds) == 1:
        return f"from {bounds[0]}" if bounds[0][0].isdigit() else bounds[0]
    return " to ".join(bounds)


def choices(field: FieldInfo) -> list[str]:
    """Return the values of a setting that has few, by name."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return ["true", "false"] if kind is bool else []


def _in_words(bound: object) -> str:
    word, value = next((word, getattr(bound, name)) for name, word in _BOUNDS.items() if hasattr(bound, name))
    return word + shown(value)
