"""The results of the paper, which the report shows beside those of the runs."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Point:
    """An operating point of the paper."""

    accuracy: float
    bits: float


@dataclass(frozen=True)
class Reported:
    """What the paper reports for one data set in one experiment."""

    source: str
    """The table, and what was trained there."""
    methods: Mapping[str, tuple[Point, ...]]


def reported(config: Mapping[str, object]) -> Reported | None:
    """The paper's results for a run's data and split, from all experiments that match.

    Models, rounds and numbers of examples are not compared: the report says so beside the numbers.
    """
    found = [entry for entry, conditions in _entries() if all(_matches(config, *item) for item in conditions.items())]
    if not found:
        return None
    methods = {name: points for entry in found for name, points in entry.methods.items()}
    return Reported("; ".join(entry.source for entry in found), methods)


def _matches(config: Mapping[str, object], name: str, wanted: object) -> bool:
    if name == "partial":
        return (config.get("per_round") not in (None, 0, config.get("clients"))) == wanted
    return config.get(name) == wanted


@cache
def _entries() -> list[tuple[Reported, dict[str, object]]]:
    """Every entry of the file, with the settings that a run must have for it."""
    file = resources.files("klms.report").joinpath("paper_results.toml")
    entries: list[tuple[Reported, dict[str, object]]] = []
    for settings in tomllib.loads(file.read_text(encoding="utf-8")).values():
        for setting in settings:
            methods = {name: tuple(Point(*pair) for pair in pairs) for name, pairs in setting.pop("methods").items()}
            entries.append((Reported(setting.pop("source"), methods), setting))
    return entries
