"""Settings of a run: the method's defaults, then a profile, a TOML file and given values. The last value wins."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path

from klms import data, files
from klms.compressors.scheme import without_effect
from klms.errors import InvalidArgument
from klms.methods.entry import MODELS, TEXT_MODELS
from klms.methods.table import METHODS, RunConfig
from klms.numerics.checks import OTHER_NAMES, check_name
from klms.runs.run_files import CONFIG, LARGEST

PROFILES = ("small", "cpu", "paper")
PRESETS: dict[str, dict[str, object]] = {
    "paper": {
        "bits": 8,
        "target": 8.0,
        "memory": 0,
        "group": 1,
        "selection": "sample",
        "aggregate": "location",
        "spread": 1e6,  # whatever clients report
        "message_factor": 0.0,
    }
}
"""Settings of the codec by name; `paper` is the paper's own rule, for comparison with the tuned settings."""

RATES = frozenset({"rate", "rate_schedule", "down_rate", "down_rate_schedule", "round_budget"})
"""Settings that determine the rates: where one of them is given, a method does not choose its rates itself."""


def resolve(
    method: str,
    *,
    profile: str | None = None,
    preset: str | None = None,
    file: Path | str | None = None,
    given: Mapping[str, object] | None = None,
) -> RunConfig:
    """Build and check the configuration of a run of `method`."""
    check_name("method", method, METHODS)
    values: dict[str, object] = {}
    if profile is not None:
        values |= profile_settings(profile, method)
    if preset is not None:
        check_name("preset", preset, PRESETS)
        values |= PRESETS[preset]
    if file is not None:
        values |= read_toml(file, str(file))
    values |= given or {}
    if values.keys() & RATES:
        values.setdefault("quality", 0.0)
    values = {**METHODS[method].defaults(), **values, "method": method}
    for name in values:
        check_name("setting", name, RunConfig.model_fields)
    config = RunConfig.checked(values)
    if config.sets_rate and not METHODS[method].takes_rate:
        able = ", ".join(name for name, entry in METHODS.items() if entry.takes_rate)
        given_name = "round_budget" if config.round_budget else "rate_schedule"
        raise InvalidArgument(f"{method} has no rate that {given_name} could set; methods with one: {able}")
    if config.quality and not METHODS[method].holds_quality:
        able = ", ".join(name for name, entry in METHODS.items() if entry.holds_quality)
        raise InvalidArgument(f"{method} cannot choose its rates to hold a quality; methods that can: {able}")
    return config


def check_effects(config: RunConfig, given: Iterable[str]) -> None:
    """Raise an `InvalidArgument` if one of the given settings has no effect in this run.

    The setting may belong to other methods, or need another setting to have a certain value.
    """
    entry = METHODS[config.method]
    for name in given:
        if not entry.uses(name):
            users = ", ".join(other.name for other in METHODS.values() if other.uses(name))
            raise InvalidArgument(f"{entry.name} has no setting {name}, which belongs to {users or 'no method'}")
        if why := without_effect(entry.needs, name, config):
            raise InvalidArgument(why)


def check_built_in(config: RunConfig, given: Iterable[str]) -> None:
    """Raise an `InvalidArgument` if the data set or the model is unknown, before anything large is imported.

    Also raise it if the model cannot read this kind of data, or if settings for text were given for images.
    """
    kinds = {info.name: info.kind for info in data.names()}
    check_name("data set", config.data, kinds)
    check_name("model", config.model, MODELS)
    fitting = [name for name in MODELS if (name in TEXT_MODELS) == (kinds[config.data] == "text")]
    if config.model not in fitting:
        kind = kinds[config.data]
        choice = ", ".join(fitting)
        raise InvalidArgument(f"{config.data} has {kind}s, which {config.model} cannot read; models that can: {choice}")
    of_texts = [name for name in given if name in ("vocabulary", "length")]
    if of_texts and kinds[config.data] != "text":
        raise InvalidArgument(f"{config.data} is not text: {of_texts[0]} would have no effect")


def read_toml(file: Path | str, shown_as: str) -> dict[str, object]:
    """Read a TOML file; if that fails, raise an `InvalidArgument` that calls the file `shown_as`."""
    try:
        text = files.read(Path(file), LARGEST[CONFIG]).decode(errors="replace")
    except OSError as error:
        raise InvalidArgument(f"{shown_as}: {error.strerror}") from error
    return parse_toml(text, shown_as)


def parse_toml(text: str, shown_as: str) -> dict[str, object]:
    """Parse the text of a TOML file; if that fails, raise an `InvalidArgument` that calls the file `shown_as`."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{shown_as} is not TOML: {error}") from error


def profile_settings(profile: str, method: str) -> dict[str, object]:
    """Return a profile's settings for a method: those of its table `all`, then those of the method's own table."""
    check_name("profile", profile, PROFILES)
    tables = tomllib.loads(resources.files("klms.runs").joinpath("profiles", f"{profile}.toml").read_text())
    return {**tables["all"], **tables.get(method, {})}


def parse_options(arguments: Iterable[str], others: Iterable[str] = ()) -> dict[str, str]:
    """Parse `--some-setting value` and `--some-setting=value` into a dictionary of settings.

    `others` are the names of the command's other options, which are suggested for a misspelt option as well.
    """
    given: dict[str, str] = {}
    remaining = iter(arguments)
    for argument in remaining:
        if not argument.startswith("--"):
            raise InvalidArgument(f"{argument!r} is not a setting; settings look like --rounds 20")
        option, equals, value = argument[2:].partition("=")
        name = option.replace("-", "_")
        if name not in RunConfig.model_fields:
            known = [*map(_as_option, RunConfig.model_fields), *others]
            near = OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(option, known, n=1)), None)
            hint = f"did you mean --{near}?" if near else "--help lists all settings"
            raise InvalidArgument(f"there is no option --{option}; {hint}")
        found = value if equals else next(remaining, None)
        if found is None:
            raise InvalidArgument(f"--{_as_option(name)} needs a value")
        given[name] = found
    return given


def _as_option(setting: str) -> str:
    return setting.replace("_", "-")


def to_toml(config: RunConfig) -> str:
    """Write the whole configuration as TOML that `resolve` can read."""
    values = config.model_dump(mode="json", exclude_none=True)
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in values.items())


def _toml_value(value: object) -> str:
    """Write a finite number, a truth value or a string: as in JSON, except that TOML forbids a bare DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
