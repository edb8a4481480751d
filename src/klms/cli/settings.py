"""Settings of runs on the command line: their help, and their completion in the shell."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from klms.cli.show import say, show_table
from klms.compressors.scheme import shown
from klms.data.registry import ENTRIES
from klms.methods.entry import MODELS, RUN_GROUPS
from klms.methods.table import METHODS, RunConfig
from klms.numerics.checks import check_name
from klms.runs.settings import PROFILES, parse_options

_BOUNDS = {"ge": "", "le": "", "gt": "above ", "lt": "below "}  # pydantic's names of bounds, and our words
ANY_OPTION = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Click's context settings for a command that accepts a run's settings as additional options."""


class Completion(NamedTuple):
    """A word that the shell offers, as Click describes it. Newer releases of typer have a Click of their own."""

    value: str
    type: str = "plain"
    help: str | None = None


def completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a callback that completes a word to one of the names, for the shell after `klms --install-completion`."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


DATA_SETS = [entry.name for entry in ENTRIES]
PROFILE = typer.Option(
    help="Take the settings of this profile: small (minutes on two cores), cpu (an hour or two) or paper (for a GPU).",
    autocompletion=completing(PROFILES),
)


def settings_given(context: typer.Context) -> dict[str, str]:
    """Return the options of a command that are settings."""
    others = [option for parameter in context.command.params for option in parameter.opts]
    return parse_options(context.args, [option.removeprefix("--") for option in others if option.startswith("--")])


class TakesSettings(TyperCommand):
    """A command that takes a run's settings as options.

    Its help lists the settings of every run and, if a method is named, the settings of this method.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["method"] = next((word for word in args if word in METHODS), None)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        method = ctx.meta["method"]
        show_settings(method)
        if method is None:
            say("\nWith the name of a method, this help lists the settings and the defaults of that method too.")

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete settings, which click does not know as options, and their values."""
        method = ctx.meta["method"]
        if incomplete.startswith("-"):
            entries = [METHODS[method]] if method else METHODS.values()
            used = [name for name in RunConfig.model_fields if any(entry.uses(name) for entry in entries)]
            names = [_as_option(name) for name in used]
        else:
            names = _values(ctx.args[-1] if ctx.args else "")
        found = [Completion(name) for name in completing(names)(incomplete)]
        return super().shell_complete(ctx, incomplete) + found


def _as_option(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _values(option: str) -> list[str]:
    """Return the values that a setting can have; an empty list for numbers and for paths."""
    if option == "--data":
        return DATA_SETS
    if option == "--model":
        return list(MODELS)
    return next((choices(field) for name, field in RunConfig.model_fields.items() if _as_option(name) == option), [])


def show_settings(method: str | None) -> None:
    """List settings in groups, with default, range and meaning: settings of every run, and of a method if given."""
    for title, rows in setting_groups(method):
        show_table(("setting", "default", "range", "meaning"), rows, title=title)


def setting_groups(method: str | None) -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
    """Yield a title for each group of settings, and the option, default, range and meaning of each setting in it."""
    if method is not None:
        check_name("method", method, METHODS)
    entry = METHODS[method] if method else None
    for kind in entry.groups if entry else RUN_GROUPS:
        rows = []
        for name, field in kind.model_fields.items():
            if entry and name in entry.unused:
                continue
            default = entry.overrides.get(name, field.default) if entry else field.default
            text = str(default).lower() if isinstance(default, bool) else str(default)
            rows.append((_as_option(name), "" if default is None else text, allowed(field), field.description or ""))
        if rows:
            yield (kind.__doc__ or "").rstrip("."), rows


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
    """Return all values of a setting that names its choices; an empty list for any other."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return ["true", "false"] if kind is bool else []


def _in_words(bound: object) -> str:
    word, value = next((word, getattr(bound, name)) for name, word in _BOUNDS.items() if hasattr(bound, name))
    return word + shown(value)
