"""All runs of the experiment `diloco`: ways to average updates with several numbers of workers, and their table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from klms.experiments.tables import table
from klms.numerics.checks import check_name

NAME = "diloco"
TITLE = "A few workers that take part in every round: loss against bytes, with outer Nesterov momentum"
ROUNDS = 100
WORKERS = (4, 8)
SEEDS = 3


@dataclass(frozen=True)
class Way:
    """How workers average their updates."""

    scheme: str
    bits: float | None = None
    """Bits per parameter of a message."""
    rank: int = 0
    feedback: bool = False
    """Whether workers use error feedback although the scheme does not need it."""

    def __str__(self) -> str:
        name = self.scheme
        if self.bits is not None:
            name += f", {self.bits:g} bits"
        if self.rank:
            name += f", rank {self.rank}"
        return name + (", error feedback" if self.feedback else "")


NONE = Way("none")
WAYS = (
    NONE,
    Way("default quality"),
    Way("trellis", 0.22),
    Way("sparseloco", 0.22),
    Way("powersgd", rank=1),
    Way("trellis", 0.1),
    Way("sparseloco", 0.1),
    Way("trellis", 0.1, feedback=True),
    Way("trellis", 0.22, feedback=True),
    Way("powersgd", rank=2),
)


class DilocoRun(NamedTuple):
    """One run."""

    workers: int
    way: Way
    seed: int
    rounds: int = ROUNDS

    def __str__(self) -> str:
        return f"{self.workers} workers; {self.way}; seed {self.seed}"

    def outcome(self) -> dict[str, Any]:
        """Carry out the run, and return its results."""
        from klms.experiments.diloco.run import run

        return run(self.workers, self.way, self.seed, self.rounds)


def grid(*, seeds: int = SEEDS, only: Sequence[str] = ()) -> list[DilocoRun]:
    """Return the runs seed by seed. `only` names the ways to run; the way without compression is always included."""
    for name in only:
        check_name("way of diloco", name, [str(way) for way in WAYS])
    ways = [way for way in WAYS if not only or way == NONE or str(way) in only]
    return [DilocoRun(workers, way, seed) for seed in range(seeds) for workers in WORKERS for way in ways]


def summary(outcome: dict[str, Any]) -> str:
    """Return the loss and the compression of a run in a few words."""
    if "error" in outcome:
        return str(outcome["error"])
    return f"loss {outcome['value']:.4f}, {outcome['times_smaller_total']:.0f} times smaller"


class Row(NamedTuple):
    """Results of one way to average updates with one number of workers, averaged over seeds."""

    workers: int
    way: str
    seeds: int
    loss: float
    """Infinite if a run ended early."""
    bits_sent: float
    """Bits per parameter that a worker sent in a round."""
    bits_received: float
    times: float

    @property
    def family(self) -> str:
        """The name of the scheme without its rate or rank, and whether error feedback is added to it."""
        scheme, *details = self.way.split(", ")
        return f"{scheme}, error feedback" if "error feedback" in details else scheme


def rows(results: dict[str, Any]) -> list[Row]:
    """Return the rows by number of workers, in the order of the runs."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for name, outcome in results["runs"].items():
        workers, way, _ = name.split("; ")
        groups.setdefault((int(workers.split()[0]), way), []).append(outcome)
    order = [str(way) for way in WAYS]
    found = sorted(groups.items(), key=lambda item: (item[0][0], order.index(item[0][1])))
    return [_row(workers, way, outcomes) for (workers, way), outcomes in found]


def _row(workers: int, way: str, outcomes: Sequence[dict[str, Any]]) -> Row:
    if any("error" in one for one in outcomes):
        return Row(workers, way, len(outcomes), math.inf, math.nan, math.nan, math.nan)
    sent, received = (
        fmean(8 * one[name] / one["parameters"] / workers / one["communications"] for one in outcomes)
        for name in ("uplink_bytes", "downlink_bytes")
    )
    loss = fmean(one["value"] for one in outcomes)
    times = fmean(one["times_smaller_total"] for one in outcomes)
    return Row(workers, way, len(outcomes), loss, sent, received, times)


def markdown(results: dict[str, Any]) -> str:
    """Return a table with a line for every combination of a number of workers and a way to average updates."""
    lines = []
    without: dict[int, float] = {}
    for row in rows(results):
        without.setdefault(row.workers, row.loss)
        change = f"{100 * (row.loss / without[row.workers] - 1):+.1f} %"
        numbers = (f"{row.loss:.4f}", change, f"{row.bits_sent:.3f}", f"{row.bits_received:.3f}", f"{row.times:,.0f}")
        lines.append((str(row.workers), row.way, str(row.seeds), *numbers))
    head = ("workers", "way", "seeds", "loss", "change", "bits sent", "bits received", "x smaller than float32")
    return table(head, lines)
