"""A results file: what complete runs of an experiment came to, by data set, row and seed, with their configuration.

Runs of later sessions and of other machines are merged into it. It has the versions of the packages that most of its
runs were made with, and others have theirs beside their numbers. It has no times, so that it does not depend on the
machine.
"""

import copy
import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from klms import files
from klms.errors import InvalidArgument
from klms.experiments import grid
from klms.experiments.catalogue import Cell, Experiment, comparable
from klms.methods.table import RunConfig
from klms.runs import execution
from klms.runs.run_folder import RunFolder

Results = dict[str, Any]
Entry = dict[str, Any]
"""A row on a data set: its configuration, the numbers of examples, and the numbers of every seed."""


@dataclass
class Changes:
    """What became of runs that were merged into a results file."""

    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Runs that the file has already, with equal settings."""

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        named = [f"{what} {'; '.join(runs)}" for what, runs in vars(self).items() if runs and runs is not self.kept]
        count = f"{len(self.kept)} runs" if len(self.kept) > 1 else "".join(self.kept)
        return "; ".join([*named, *([f"kept {count}, of equal settings"] if count else [])])


def collect(experiment: Experiment, cells: Sequence[Cell], runs: Path | str) -> Results:
    """Return the complete runs among `cells`, which are below `runs`."""
    grid.check_settings(cells, runs)
    rows: dict[str, dict[str, Entry]] = {}
    for cell in grid.complete(cells, runs):
        folder = RunFolder(cell.folder(runs))
        described = folder.description()
        counts = {"train": sum(map(sum, described.split)), "test": described.tested}
        examples = {half: count for half, count in counts.items() if count}
        new = {"config": comparable(cell.config, "seed"), "examples": examples, "seeds": {}}
        entry = rows.setdefault(cell.data, {}).setdefault(cell.row, new)
        entry["seeds"][str(cell.seed)] = {**_numbers(folder), "versions": folder.versions()}
        if experiment.series and cell.seed == 0:
            records = [record.model_dump(mode="json") for record in folder.records()]
            entry["series"] = {name: [record.get(name) for record in records] for name in experiment.series}
            entry["layers"] = [layer.name for layer in described.layers]
    return _with_common_versions({"experiment": experiment.name, "versions": {}, "data": rows})


def _numbers(folder: RunFolder) -> dict[str, Any]:
    summary = execution.summarise(folder)
    return {
        **{name: round(value, 6) for name, value in summary.metrics.items()},
        "bits_per_parameter": round(summary.bits_per_parameter, 6),
        "uplink_bytes": summary.uplink_bytes,
        "downlink_bytes": summary.downlink_bytes,
        "times_smaller_total": summary.times_smaller_total and round(summary.times_smaller_total, 2),
    }


def read(path: Path) -> Results:
    """Read a results file; one that is not there yet has no runs."""
    if not path.exists():
        return {"versions": {}, "data": {}}
    try:
        found = json.loads(path.read_bytes())
        if not {"versions", "data"} <= found.keys():
            raise ValueError("it has no versions or no data")
    except (ValueError, AttributeError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not a results file ({error}): move it away") from error
    return dict(found)


def write_json(path: Path | str, results: object) -> Path:
    """Write a results file, completely or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, (json.dumps(results, indent=1) + "\n").encode())
    return path


def commit(
    path: Path, experiment: Experiment, profile: str, cells: Sequence[Cell], runs: Path, *, replace: bool = False
) -> Changes:
    """Merge the complete runs among `cells` into the file at `path`; with `replace`, they win over its runs."""
    old = read(path)
    merged, changes = merge(old, collect(experiment, cells, runs), replace=replace)
    ordered = {"experiment": experiment.name, **merged, "data": _in_order(merged["data"], experiment, profile)}
    if ordered != old:
        write_json(path, ordered)
    return changes


def merge(old: Results, new: Results, *, replace: bool = False) -> tuple[Results, Changes]:
    """Return the runs of both.

    Of two runs with equal settings and seed, the old one is kept unless `replace`; of two rows with different settings,
    the new one is.
    """
    merged, changes = with_own_versions(old), Changes()
    for data, row, entry in entries(with_own_versions(new)):
        rows = merged["data"].setdefault(data, {})
        names = {seed: f"{row}, {data}, seed {seed}" for seed in entry["seeds"]}
        if row not in rows:
            rows[row] = entry
            changes.added += names.values()
        elif odd := differences(rows[row], entry):
            rows[row] = entry
            changes.replaced += [f"{name} (a row with other {', '.join(odd)})" for name in names.values()]
        else:
            there = rows[row]["seeds"]
            changed = [seed for seed in names if seed in there and there[seed] != entry["seeds"][seed]]
            replaced = changed if replace else []
            changes.added += [names[seed] for seed in names if seed not in there]
            changes.replaced += [names[seed] for seed in replaced]
            changes.kept += [names[seed] for seed in names if seed in there and seed not in replaced]
            rows[row] = _joined(rows[row], entry, replace=replace)
    return _with_common_versions(merged), changes


def differences(committed: Entry, own: Entry) -> list[str]:
    """Return what differs between two entries of a row: settings, and numbers of examples where both have them.

    A setting that is younger than the committed entry had its default when that was made.
    """
    settings = dict.fromkeys([*committed["config"], *own["config"]])
    odd = [name for name in settings if _setting(committed, name) != _setting(own, name)]
    known, found = committed.get("examples", {}), own.get("examples", {})
    return odd + [f"number of {half} examples" for half in known if known[half] != found.get(half, known[half])]


def _setting(entry: Entry, name: str) -> Any:
    known = RunConfig.model_fields
    return entry["config"].get(name, known[name].default if name in known else None)


def _joined(committed: Entry, own: Entry, *, replace: bool) -> Entry:
    """Return an entry with the seeds of both, which have equal settings."""
    if not replace and own["seeds"].keys() <= committed["seeds"].keys():
        return committed
    preferred, other = (own, committed) if replace else (committed, own)
    return {
        **other,
        **preferred,
        "config": own["config"],  # it has settings that are younger than the committed entry, too
        "examples": {**committed.get("examples", {}), **own["examples"]},
        "seeds": {**other["seeds"], **preferred["seeds"]},
    }


def entries(results: Results) -> Iterator[tuple[str, str, Entry]]:
    """Yield every entry with its data set and row."""
    for data, rows in results["data"].items():
        for row, entry in rows.items():
            yield data, row, entry


def with_own_versions(results: Results) -> Results:
    """Return a copy in which every run has its versions."""
    made = copy.deepcopy(results)
    for _, _, entry in entries(made):
        for run in entry["seeds"].values():
            run.setdefault("versions", made["versions"])
    return made


def _with_common_versions(results: Results) -> Results:
    """Return the same results with the most frequent versions in one place; `results` has those of every run."""
    runs = [run for _, _, entry in entries(results) for run in entry["seeds"].values()]
    counted = Counter(json.dumps(run["versions"]) for run in runs)
    common = json.loads(counted.most_common(1)[0][0]) if counted else {}
    for run in runs:
        if run["versions"] == common:
            del run["versions"]
    return {**results, "versions": common}


def _in_order(data: dict[str, Any], experiment: Experiment, profile: str) -> dict[str, Any]:
    """Return data sets, rows and seeds in the order of the experiment, whenever they came in; others follow."""
    made: dict[str, Any] = {}
    for where in _first(experiment.profiles[profile]["data"], data):
        made[where] = {}
        for row in _first(experiment.rows_of(profile), data[where]):
            entry = data[where][row]
            made[where][row] = {
                **entry,
                "seeds": {seed: entry["seeds"][seed] for seed in sorted(entry["seeds"], key=int)},
            }
    return made


def _first(order: Sequence[str], found: Collection[str]) -> list[str]:
    """Return the names that were found, those of `order` first."""
    return [*(name for name in order if name in found), *(name for name in found if name not in order)]
