"""Compare the finished runs of an experiment with the committed results, digit by digit."""

from dataclasses import dataclass
from pathlib import Path

from klms.experiments import grid, results_file
from klms.experiments.catalogue import Experiment
from klms.experiments.results_file import Entry, Results
from klms.experiments.tables import mean

VERSIONS = ("torch", "numpy")
"""Packages on whose versions the numbers depend."""


@dataclass(frozen=True)
class ComparedRow:
    """A row with the seeds that both sides have. Pairs: mean of the committed results, mean of the user's runs."""

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
    """Rows that cannot be compared, each with the reason."""
    versions: set[str]
    """Differences between versions of packages."""

    @property
    def equal(self) -> bool:
        return all(row.equal for row in self.rows)

    def verdict(self) -> str:
        """Return one line that says whether the runs repeat the committed results."""
        versions = f"the versions of {' and '.join(VERSIONS)} are the same"
        if self.versions:
            versions = f"versions differ: {', '.join(sorted(self.versions))}"
        elif not self.equal:
            versions += f", but processors may differ, or the values of {' and '.join(grid.INSTRUCTIONS)}"
        if self.equal:
            runs = sum(row.seeds for row in self.rows)
            return f"equal to every digit (rows: {len(self.rows)}, runs: {runs}); {versions}"
        odd = [f"{row.row} ({row.data})" for row in self.rows if not row.equal]
        return f"rows that differ ({len(odd)} of {len(self.rows)}): {'; '.join(odd)}; {versions}"


def compare(experiment: Experiment, profile: str, runs: Path, committed: Results) -> Comparison:
    """Compare the complete runs below `runs` with the committed results."""
    found = Comparison([], [], set())
    own = results_file.collect(experiment, experiment.cells(profile, runs))
    for data, row, entry in results_file.entries(own):
        there = committed.get(data, {}).get(row, {"seeds": {}})
        seeds = [seed for seed in entry["seeds"] if seed in there["seeds"]]
        if not seeds:
            found.remarks.append(f"{row}, {data}: not in the committed results")
        elif odd := results_file.differences(there, entry):
            found.remarks.append(f"{row}, {data}: the committed row has other {', '.join(odd)}")
        else:
            found.rows.append(_compared(row, data, seeds, there, entry))
            found.versions.update(_changed_versions(seeds, there, entry))
    return found


def _compared(row: str, data: str, seeds: list[str], committed: Entry, own: Entry) -> ComparedRow:
    before, now = ({"seeds": {seed: side["seeds"][seed] for seed in seeds}} for side in (committed, own))
    accuracy = (mean(before, "accuracy"), mean(now, "accuracy"))
    bits = (mean(before, "bits_per_parameter"), mean(now, "bits_per_parameter"))
    equal = all(
        number == now["seeds"][seed].get(name, number)  # older results lack some numbers, and so may the user's runs
        for seed in seeds
        for name, number in before["seeds"][seed].items()
        if name != "versions"
    )
    return ComparedRow(row, data, len(seeds), accuracy, bits, equal)


def _changed_versions(seeds: list[str], committed: Entry, own: Entry) -> set[str]:
    before, now = ([side["seeds"][seed]["versions"] for seed in seeds] for side in (committed, own))
    pairs = [(name, old.get(name), new.get(name)) for old, new in zip(before, now, strict=True) for name in VERSIONS]
    return {f"{name} {new} instead of {old}" for name, old, new in pairs if old != new}
