"""All runs of the panel, and the tables of their results."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from klms.experiments.panel.cells import ABLATIONS, CODINGS, SEEDS, STOCK, Coding, Federation, affected, default_of
from klms.experiments.tables import table
from klms.numerics.checks import check_name

NAME = "panel"
TITLE = "What a quality or a number of bits costs models of a dozen kinds"


class PanelRun(NamedTuple):
    """One run: a federation, a way to code its messages, and a seed."""

    federation: Federation
    coding: Coding
    seed: int

    def __str__(self) -> str:
        return f"{self.federation}; {self.coding}; seed {self.seed}"

    def outcome(self) -> dict[str, Any]:
        """Carry out the run, and return its results."""
        from klms.experiments.panel.run import run

        return run(self.federation, self.coding, self.seed)


def grid(*, seeds: int = SEEDS, only: Sequence[str] = ()) -> list[PanelRun]:
    """Return the runs seed by seed, so that every federation has its first seed early.

    `only` names some of the codings or ablations; the runs without compression are always included, for comparison.
    Ablations are run only if they are named.
    """
    for name in only:
        check_name("coding of the panel", name, [str(coding) for coding in CODINGS + ABLATIONS])
    codings = [coding for coding in CODINGS if not only or coding == STOCK or str(coding) in only]
    codings += [coding for coding in ABLATIONS if str(coding) in only]
    return [
        PanelRun(federation, coding, seed)
        for seed in range(seeds)
        for coding in codings
        for federation in affected(coding)
    ]


def summary(outcome: dict[str, Any]) -> str:
    """Return the metric and the compression of a run in a few words."""
    if "error" in outcome:
        return str(outcome["error"])
    return f"{outcome['metric']} {outcome['value']:.4g}, {outcome['times_smaller_total']:.0f} times smaller"


def lost(coded: dict[str, Any], stock: dict[str, Any]) -> float:
    """Return the points of accuracy that a run lost, or the percentage by which its loss grew."""
    if "value" not in coded:
        return float("inf")
    if stock["metric"] == "accuracy":
        return float(stock["value"] - coded["value"])
    return 100 * float(coded["value"] / stock["value"] - 1)


def markdown(results: dict[str, Any]) -> str:
    """Return a table per federation of what every coding costs in accuracy and saves in bytes, averaged over seeds."""
    shown_codings = [str(coding) for coding in CODINGS]
    rows = [row for row in _rows(results) if row.coding in shown_codings]
    codings = list(dict.fromkeys(row.coding for row in rows))
    cells = {(row.federation, row.coding): row for row in rows}
    lines = []
    for federation in dict.fromkeys(row.federation for row in rows):
        shown = [cells.get((federation, coding)) for coding in codings]
        lines.append([federation, *("" if row is None else str(row) for row in shown)])
    lines.append(
        ["mean loss, median factor", *(_summary([row for row in rows if row.coding == one]) for one in codings)]
    )
    return table(("federation", *codings), lines)


def ablations(results: dict[str, Any]) -> str:
    """Return a table of results with other constants, compared with the default constants in the same runs."""
    runs = results["runs"]
    lines = []
    for coding in ABLATIONS:
        done = [name for name in runs if name.split("; ")[1] == str(coding)]
        usual = [name.replace(f"; {coding};", "; quality 1;") for name in done]
        both = [(name, other) for name, other in zip(done, usual, strict=True) if other in runs]
        if not both:
            continue
        changed = _of_runs(runs, [name for name, _ in both])
        default = _of_runs(runs, [other for _, other in both])
        lines.append([str(coding), default_of(coding), str(len(both)), *changed, *default])
    head = ("constant", "usual", "runs", "lost", "worst", "x smaller")
    return table((*head, "lost, usual", "worst, usual", "x smaller, usual"), lines)


def _of_runs(runs: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Return the mean and the maximum loss of the runs (`lost`), and the median of their `times_smaller_total`."""
    losses, times = [], []
    for name in names:
        federation, _, seed = name.split("; ")
        losses.append(lost(runs[name], runs[f"{federation}; stock; {seed}"]))
        times.append(runs[name].get("times_smaller_total", math.nan))
    return [f"{fmean(losses):+.2f}", f"{max(losses):+.1f}", f"{median(times):.0f}"]


class Row(NamedTuple):
    """A coding in a federation, averaged over seeds."""

    federation: str
    coding: str
    lost: float
    times: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.lost:+.2f}, x {self.times:.0f} ({self.seeds})"


def _summary(rows: Sequence[Row]) -> str:
    return f"{fmean(row.lost for row in rows):+.2f}, x {median(row.times for row in rows):.0f}"


def _rows(results: dict[str, Any]) -> Iterator[Row]:
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for name, outcome in results["runs"].items():
        federation, coding, seed = name.split("; ")
        stock = results["runs"].get(f"{federation}; stock; {seed}")
        if coding != "stock" and stock is not None:
            pair = lost(outcome, stock), float(outcome.get("times_smaller_total", "nan"))
            groups.setdefault((federation, coding), []).append(pair)
    for (federation, coding), pairs in groups.items():
        losses, times = zip(*pairs, strict=True)
        yield Row(federation, coding, fmean(losses), fmean(times), len(pairs))
