"""The paper's own figures, to stand beside what was measured here."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

CONDITIONS = ("split", "c_max", "partial")


@dataclass(frozen=True)
class Point:
    """An operating point of the paper."""

    accuracy: float
    bits: float


@dataclass(frozen=True)
class Reported:
    """What the paper has for one data set in one experiment."""

    experiment: str
    source: str
    """The table, and what was trained there."""
    methods: Mapping[str, tuple[Point, ...]]


def reported(config: Mapping[str, object]) -> Reported | None:
    """The paper's numbers for a run's data and split; several experiments that fit are put together.

    Models, rounds and numbers of examples are not compared: the report says so beside the numbers.
    """
    found = [entry for entry, conditions in _entries() if all(_fits(config, *item) for item in conditions.items())]
    if not found:
        return None
    methods: dict[str, tuple[Point, ...]] = {}
    for entry in found:
        methods |= entry.methods
    return Reported(" and ".join(e.experiment for e in found), "; ".join(e.source for e in found), methods)


def _fits(config: Mapping[str, object], name: str, wanted: object) -> bool:
    if name == "partial":
        return (config.get("per_round") not in (None, 0, config.get("clients"))) == wanted
    return config.get(name) == wanted


@cache
def _entries() -> list[tuple[Reported, dict[str, object]]]:
    file = resources.files("klms.report").joinpath("paper_results.toml")
    entries: list[tuple[Reported, dict[str, object]]] = []
    for experiment, settings in tomllib.loads(file.read_text(encoding="utf-8")).items():
        for setting in settings:
            conditions = {name: setting[name] for name in ("data", *CONDITIONS) if name in setting}
            methods = {name: tuple(Point(*pair) for pair in pairs) for name, pairs in setting["methods"].items()}
            entries.append((Reported(experiment, setting["source"], methods), conditions))
    return entries
