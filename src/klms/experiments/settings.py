"""Where the settings of a run come from: defaults, a profile, a TOML file, the command line; the later wins."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from klms.methods.config import RunConfig
from klms.methods.registry import METHODS

PROFILES = ("small", "paper")


class SettingsError(ValueError):
    """A setting that is not there, or has a value that it cannot have."""


def resolve(
    method: str, *, profile: str | None = None, file: Path | None = None, given: Mapping[str, object] | None = None
) -> RunConfig:
    """The configuration of a run."""
    check_name("method", method, METHODS)
    values: dict[str, object] = {}
    if profile is not None:
        check_name("profile", profile, PROFILES)
        values |= profile_settings(profile, method)
    if file is not None:
        try:
            values |= tomllib.loads(file.read_text())
        except OSError as error:
            raise SettingsError(f"{file}: {error.strerror}") from error
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{file} is not TOML: {error}") from error
    values |= given or {}
    values["method"] = method
    for name in values:
        check_name("setting", name, RunConfig.model_fields)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        reasons = [f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors()]
        raise SettingsError("; ".join(reasons)) from error


def profile_settings(profile: str, method: str) -> dict[str, object]:
    """A profile's settings of a method: those of all methods, then its own."""
    text = resources.files("klms.experiments").joinpath("profiles", f"{profile}.toml").read_text()
    tables = tomllib.loads(text)
    return {**tables["all"], **tables.get(method, {})}


def parse_options(arguments: Iterable[str]) -> dict[str, str]:
    """`--some-setting value` and `--some-setting=value` as a dictionary."""
    given: dict[str, str] = {}
    waiting: str | None = None
    for argument in arguments:
        if waiting is not None:
            given[waiting] = argument
            waiting = None
        elif argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            name = name.replace("-", "_")
            check_name("setting", name, RunConfig.model_fields)
            if equals:
                given[name] = value
            else:
                waiting = name
        else:
            raise SettingsError(f"{argument!r} is not a setting; they look like --rounds 20")
    if waiting is not None:
        raise SettingsError(f"--{waiting.replace('_', '-')} needs a value")
    return given


def to_toml(config: RunConfig) -> str:
    """The whole configuration, as a file that `resolve` reads."""
    values = config.model_dump(mode="json", exclude_none=True)
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Or say which name is nearest."""
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise SettingsError(f"there is no {what} {name!r}; {hint}")
