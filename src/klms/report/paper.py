"""The paper's numbers. They are shown with the numbers of runs on the same data and split."""

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import chain
from typing import NamedTuple

from klms.report.rows import Row


class PaperResults(NamedTuple):
    """The paper's results for one data set."""

    source: str
    """The paper's table, with the model and the number of rounds used there."""
    methods: Mapping[str, Sequence[tuple[float, float]]]
    """Pairs of accuracy and bits per parameter, by method."""

    def point(self, row: Row) -> tuple[float, float] | None:
        """Return the paper's point for a row: among those of its method, the one with the nearest bitrate by ratio."""
        points = self.methods.get(row.method, ())
        bits = statistics.fmean(run.bits for run in row.runs)
        if not points or bits <= 0:
            return None
        accuracy, rate = min(points, key=lambda point: abs(math.log(point[1] / bits)))
        return accuracy, rate


def results_for(config: Mapping[str, object]) -> PaperResults:
    """Return the paper's results for a run's data and split; empty if no experiment of the paper matches.

    Models, rounds and numbers of examples are not compared: the report says so next to the numbers.
    """
    settings = {**config, "partial": config.get("per_round") not in (None, 0, config.get("clients"))}
    found = [entry for entry, conditions in entries() if conditions.items() <= settings.items()]
    methods = {name: points for entry in found for name, points in entry.methods.items()}
    return PaperResults("; ".join(entry.source for entry in found), methods)


@cache
def entries() -> list[tuple[PaperResults, dict[str, object]]]:
    """Return every entry of the file, with the settings that a run must have to match it."""
    file = resources.files("klms.report").joinpath("paper_results.toml")
    found = chain.from_iterable(tomllib.loads(file.read_text(encoding="utf-8")).values())
    return [(PaperResults(entry.pop("source"), entry.pop("methods")), entry) for entry in found]
