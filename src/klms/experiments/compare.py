"""Compare the finished runs of an experiment with the committed results, digit by digit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from klms.experiments import grid, results_file
from klms.experiments.catalogue import LIMITED, Cell, Experiment, comparable
from klms.experiments.results_file import Entry, Results
from klms.experiments.tables import mean_and_deviation
from klms.runs.run_files import CONFIG
from klms.runs.run_folder import RunFolder
from klms.runs.settings import PROFILES

VERSIONS = ("torch", "numpy")
"""Packages on whose versions the numbers depend."""


@dataclass(frozen=True)
class ComparedRow:
    """A row with the seeds that both sides have; numbers are those of the committed results, then the own ones."""

    row: str
    data: str
    seeds: int
    accuracy: tuple[float, float]
    bits: tuple[float, float]
    equal: bool
    """Whether all numbers of all seeds are equal to every digit, not only these means."""


@dataclass(frozen=True)
class Comparison:
    """The rows that can be compared."""

    rows: list[ComparedRow]
    remarks: list[str]
    """Runs that cannot be compared, each with the reason."""
    versions: dict[str, tuple[str, str]]
    """Packages whose versions differ: committed, own."""

    @property
    def equal(self) -> bool:
        return all(row.equal for row in self.rows)

    def verdict(self) -> str:
        """Return one line that says whether the runs repeat the committed results."""
        same = f"the versions of {' and '.join(VERSIONS)} are the same"
        if not self.equal:
            same += f", but processors may differ, or the values of {' and '.join(grid.INSTRUCTIONS)}"
        changed = [f"{name} {own} instead of {committed}" for name, (committed, own) in self.versions.items()]
        versions = f"versions differ: {', '.join(changed)}" if changed else same
        if self.equal:
            runs = sum(row.seeds for row in self.rows)
            return f"equal to every digit: {_count(len(self.rows), 'row')}, {_count(runs, 'run')}; {versions}"
        odd = [f"{row.row} ({row.data})" for row in self.rows if not row.equal]
        return f"rows that differ ({len(odd)} of {len(self.rows)}): {'; '.join(odd)}; {versions}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def compare(experiment: Experiment, profile: str, runs: Path, committed: Results) -> Comparison:
    """Compare the complete runs below `runs`, on packaged data or on the user's own, with the committed results."""
    cells = experiment.cells(profile)
    committed = results_file.with_own_versions(committed)
    remarks = list(_elsewhere(experiment.name, profile, runs))
    rows: list[ComparedRow] = []
    versions: dict[str, tuple[str, str]] = {}
    for own_data in (False, True):
        place = grid.place(runs, profile, experiment.name, own_data=own_data)
        usable = [cell for cell in cells if _is_usable(cell, place, remarks)]
        own = results_file.with_own_versions(results_file.collect(experiment, usable, place))
        for data, row, entry in results_file.entries(own):
            there = committed["data"].get(data, {}).get(row, {"seeds": {}})
            if reason := _obstacle(there, entry):
                remarks.append(f"{row}, {data}: {reason}")
                continue
            rows.append(_compared(row, data, there, entry))
            versions |= _changed_versions(there, entry)
    return Comparison(rows, remarks, versions)


def _elsewhere(name: str, profile: str, runs: Path) -> Iterator[str]:
    """Say which other runs of the experiment there are."""
    for own_data in (False, True):
        for limited in sorted(grid.place(runs, profile, name, own_data=own_data).glob(f"*{LIMITED}")):
            yield f"{limited}: these runs end early"
        for other in PROFILES:
            place = grid.place(runs, other, name, own_data=own_data)
            if other != profile and any(place.rglob(CONFIG)):
                yield f"{place}: these runs have the profile {other}; --profile {other} compares them"


def _is_usable(cell: Cell, place: Path, remarks: list[str]) -> bool:
    """Return whether the run of a cell is complete; of a run that is there and is not, the reason becomes a remark."""
    folder = RunFolder(cell.folder(place))
    if not folder.exists():
        return False
    if comparable(folder.config()) != comparable(cell.config):
        remarks.append(f"{folder.path}: this run has other settings than the experiment")
        return False
    rounds = folder.rounds()
    if rounds < cell.config.rounds:
        remarks.append(f"{folder.path}: {rounds} of {cell.config.rounds} rounds are complete")
        return False
    return True


def _obstacle(committed: Entry, own: Entry) -> str:
    """Return why the entries of a row cannot be compared; empty if they can."""
    if not own["seeds"].keys() & committed["seeds"].keys():
        return "not in the committed results"
    odd = results_file.differences(committed, own)
    return f"the committed row has other {', '.join(odd)}" if odd else ""


def _compared(row: str, data: str, committed: Entry, own: Entry) -> ComparedRow:
    seeds = [seed for seed in own["seeds"] if seed in committed["seeds"]]
    sides = [{"seeds": {seed: side["seeds"][seed] for seed in seeds}} for side in (committed, own)]
    accuracies = [mean_and_deviation(side, "accuracy")[0] for side in sides]
    bits = [mean_and_deviation(side, "bits_per_parameter")[0] for side in sides]
    equal = all(_equal(committed["seeds"][seed], own["seeds"][seed]) for seed in seeds)
    return ComparedRow(row, data, len(seeds), (accuracies[0], accuracies[1]), (bits[0], bits[1]), equal)


def _equal(committed: dict[str, Any], own: dict[str, Any]) -> bool:
    """Return whether the numbers are equal that both have: older results lack some."""
    names = (committed.keys() & own.keys()) - {"versions"}
    return all(committed[name] == own[name] for name in names)


def _changed_versions(committed: Entry, own: Entry) -> dict[str, tuple[str, str]]:
    changed = {}
    for seed in own["seeds"].keys() & committed["seeds"].keys():
        before, now = committed["seeds"][seed]["versions"], own["seeds"][seed]["versions"]
        for name in VERSIONS:
            if before.get(name) != now.get(name):
                changed[name] = (str(before.get(name)), str(now.get(name)))
    return changed
