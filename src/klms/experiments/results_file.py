"""A results file: the numbers of an experiment's complete runs, by data set, row and seed, with their configuration.

Runs of later sessions and of other machines are merged into the file. The versions of packages with which most runs
were made are stated once; a run with other versions states them next to its numbers. In memory, every run has its own
versions. The file has no times, so that it does not depend on the machine.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from klms import files
from klms.errors import InvalidArgument
from klms.experiments.catalogue import Cell, Experiment, comparable
from klms.methods.table import RunConfig
from klms.runs import execution
from klms.runs.run_folder import RunFolder

LARGEST = 1 << 24
"""Maximum size of a results file in bytes; the largest committed file, `panel.json`, has 1.3 million."""

Entry = dict[str, Any]
"""A row on a data set: its configuration, the numbers of examples, and the numbers of every seed."""
Results = dict[str, dict[str, Entry]]
"""Entries by data set and row."""


class _Run(BaseModel):
    """What the file must have for each run; all other numbers of the run are optional."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, float | None]

    accuracy: float
    bits_per_parameter: float
    versions: dict[str, str]


class _Entry(BaseModel):
    """What the file must have for each row on a data set."""

    model_config = ConfigDict(strict=True)

    config: dict[str, Any]
    examples: dict[str, int] = {}
    seeds: dict[Annotated[str, Field(pattern="^[0-9]{1,19}$")], _Run]


_FORM = TypeAdapter(dict[str, dict[str, _Entry]])


@dataclass
class Changes:
    """How a results file changed when runs were merged into it."""

    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Runs that the file already had, with equal settings."""

    def __str__(self) -> str:
        parts = [f"{what} {'; '.join(runs)}" for what, runs in vars(self).items() if runs and what != "kept"]
        if self.kept:
            which = self.kept[0] if len(self.kept) == 1 else f"{len(self.kept)} runs"
            parts.append(f"kept {which}, with equal settings")
        return "; ".join(parts)


def collect(experiment: Experiment, cells: Sequence[Cell]) -> Results:
    """Return the complete runs among `cells`."""
    results: Results = {}
    for cell in [cell for cell in cells if cell.complete]:
        folder = cell.folder
        described = folder.description()
        counts = {"train": sum(map(sum, described.split)), "test": described.tested}
        examples = {half: count for half, count in counts.items() if count}
        new = {"config": comparable(cell.config, "seed"), "examples": examples, "seeds": {}}
        entry = results.setdefault(cell.data, {}).setdefault(cell.row, new)
        entry["seeds"][str(cell.seed)] = {**_numbers(folder), "versions": folder.versions()}
        if experiment.series and cell.seed == 0:
            records = [record.model_dump(mode="json") for record in folder.records()]
            entry["series"] = {name: [record.get(name) for record in records] for name in experiment.series}
            entry["layers"] = [layer.name for layer in described.layers]
    return results


def _numbers(folder: RunFolder) -> dict[str, Any]:
    summary = execution.summarise(folder)
    return {
        **{name: round(value, 6) for name, value in summary.metrics.items()},
        "bits_per_parameter": round(summary.bits_per_parameter, 6),
        "uplink_bytes": summary.uplink_bytes,
        "downlink_bytes": summary.downlink_bytes,
        "times_smaller_total": summary.times_smaller_total and round(summary.times_smaller_total, 2),
    }


def read_json(path: Path) -> Any:
    """Read a JSON file of results."""
    return json.loads(files.read(path, LARGEST))


def write_json(path: Path | str, results: object) -> Path:
    """Write a JSON file of results, completely or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, (json.dumps(results, indent=1) + "\n").encode())
    return path


def read(path: Path) -> Results:
    """Read a results file; a file that does not exist yet has no runs."""
    if not path.exists():
        return {}
    try:
        found = read_json(path)
        for run in _runs(found["data"]):
            run.setdefault("versions", found["versions"])
        _FORM.validate_python(found["data"], strict=True)
        return dict(found["data"])
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{', '.join(map(str, first['loc']))}: {first['msg']}"
        raise InvalidArgument(f"{path} is not a results file ({reason}): move it away") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not a results file ({error}): move it away") from error


def write(path: Path, experiment: Experiment, profile: str, results: Results) -> None:
    """Write a results file: data sets, rows and seeds in the order of the experiment, others after them."""
    counted = Counter(json.dumps(run["versions"]) for run in _runs(results))
    common = json.loads(counted.most_common(1)[0][0])
    for run in _runs(results):
        if run["versions"] == common:
            del run["versions"]
    data = _in_order(results, experiment.profiles[profile]["data"])
    for where, rows in data.items():
        data[where] = _in_order(rows, experiment.rows_of(profile))
        for entry in rows.values():
            entry["seeds"] = _in_order(entry["seeds"], sorted(entry["seeds"], key=int))
    write_json(path, {"experiment": experiment.name, "versions": common, "data": data})


def _in_order(found: Mapping[str, Any], first: Iterable[str]) -> dict[str, Any]:
    return {name: found[name] for name in (*first, *found) if name in found}


def entries(results: Results) -> Iterator[tuple[str, str, Entry]]:
    """Yield every entry with its data set and row."""
    for data, rows in results.items():
        for row, entry in rows.items():
            yield data, row, entry


def _runs(results: Results) -> list[dict[str, Any]]:
    return [run for _, _, entry in entries(results) for run in entry["seeds"].values()]


def commit(
    path: Path, experiment: Experiment, profile: str, cells: Sequence[Cell], *, replace: bool = False
) -> Changes:
    """Merge the complete runs among `cells` into the file at `path`.

    With `replace`, they replace runs in the file that have the same settings and seed.
    """
    results = read(path)
    changes = merge(results, collect(experiment, cells), replace=replace)
    if changes.added or changes.replaced:
        write(path, experiment, profile, results)
    return changes


def merge(results: Results, new: Results, *, replace: bool = False) -> Changes:
    """Add the new runs to the results.

    Of two runs with equal settings and seed, the old one is kept unless `replace`; of two rows with different settings,
    the new row is kept.
    """
    changes = Changes()
    for data, row, entry in entries(new):
        rows = results.setdefault(data, {})
        old = rows.get(row, {"seeds": {}})
        odd = differences(old, entry) if row in rows else []
        if odd:
            old = {"seeds": {}}
        seeds = dict(old["seeds"])
        for seed, run in entry["seeds"].items():
            name = f"{row}, {data}, seed {seed}"
            if odd:
                changes.replaced.append(f"{name} (a row with other {', '.join(odd)})")
            elif seed not in seeds:
                changes.added.append(name)
            elif replace and seeds[seed] != run:
                changes.replaced.append(name)
            else:
                changes.kept.append(name)
                continue
            seeds[seed] = run
        joined = old | entry if replace else entry | old
        examples = old.get("examples", {}) | entry["examples"]
        rows[row] = {**joined, "config": entry["config"], "examples": examples, "seeds": seeds}
    return changes


def differences(committed: Entry, own: Entry) -> list[str]:
    """Return the differences between two entries of a row: settings, and numbers of examples that both entries have.

    A setting that is newer than the committed entry had its default value when that entry was made.
    """
    defaults = {name: known.default for name, known in RunConfig.model_fields.items()}
    before, now = ({**defaults, **entry["config"]} for entry in (committed, own))
    odd = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    known, found = committed.get("examples", {}), own.get("examples", {})
    return odd + [f"number of {half} examples" for half in known if known[half] != found.get(half, known[half])]
