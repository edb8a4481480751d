"""The paper's experiments by name, read from the files in `named/`, which describe their grids of runs.

A file has `rows` (a name and the settings that make the row; the name is the method unless `method` says otherwise),
`settings` for all rows, and for each profile the data sets and further settings: for all rows (`settings`), for one
data set (`by_data`) and for one row (`by_row`). Values are taken in this order, and the last one wins: the profile of
the method, `settings` of the experiment, then of its profile, `by_data`, the row, `by_row`, and the seed.
`times_target` in a row multiplies the KL target that the row would have otherwise. A profile may have `rows`, the rows
that it runs, in this order, and `one_seed`, the rows that it runs with one seed only. `series` lists the fields of the
ledger that the results keep for every round.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from klms.data import names as data_names
from klms.errors import InvalidArgument, RunFolderError
from klms.experiments.toy import TOYS
from klms.methods.entry import RUN_GROUPS
from klms.methods.table import METHODS, RunConfig
from klms.numerics.checks import check_name
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve

_NAMED = resources.files("klms.experiments") / "named"
TRAINED = sorted(file.name.removesuffix(".toml") for file in _NAMED.iterdir() if file.name.endswith(".toml"))
"""Names of the experiments that are grids of runs."""
NAMES = sorted([*TOYS, *TRAINED])
"""Names of all experiments, including those of the toy model."""
RUNS = Path("runs/experiments")
"""Where runs of experiments are kept, unless a user says otherwise."""
LIMITED = "-rounds"
"""Suffix of the names of folders for shortened runs, such as `3-rounds`."""
SEEDS = 3
"""Number of seeds of every row, unless a profile runs the row with one seed only."""


@dataclass(frozen=True)
class Cell:
    """One run of an experiment: a row on a data set with a seed."""

    row: str
    data: str
    seed: int
    config: RunConfig
    folder: RunFolder

    def rounds(self) -> int:
        """Return the number of complete rounds; raise a `RunFolderError` if the folder holds another run."""
        if not self.folder.exists():
            return 0
        found = self.folder.config()
        advice = "move it, or choose another --runs"
        if comparable(found) != comparable(self.config):
            raise RunFolderError(f"{self.folder.path} holds a run with other settings: {advice}")
        if self.config.data_dir is not None and found.data_dir is None:
            raise RunFolderError(f"{self.folder.path} holds a run on packaged data: {advice}")
        return self.folder.rounds()

    @property
    def complete(self) -> bool:
        return self.rounds() > 0 and self.folder.complete()

    def __str__(self) -> str:
        return f"{self.row}, {self.data}, seed {self.seed}"


@dataclass(frozen=True)
class Experiment:
    """A grid of runs: rows, data sets and seeds."""

    name: str
    title: str
    paper: str
    rows: dict[str, dict[str, Any]]
    profiles: dict[str, dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    series: tuple[str, ...] = ()

    def method(self, row: str) -> str:
        return str(self.rows[row].get("method", row))

    def rows_of(self, profile: str, only: Sequence[str] = (), methods: Sequence[str] = ()) -> list[str]:
        """Return the rows of a profile: all of them, or the rows named in `only` and all rows of `methods`."""
        rows = list(self._profile(profile).get("rows", self.rows))
        variants = {self.method(row) for row in rows}
        for name in only:
            if name in variants.difference(rows):
                raise InvalidArgument(f"{name!r} is not a row of {self.name}, but --method {name} takes all its rows")
            check_name(f"row of {self.name} (profile {profile})", name, rows)
        for name in methods:
            check_name(f"method of {self.name} (profile {profile})", name, sorted(variants))
        if not only and not methods:
            return rows
        return [row for row in rows if row in only or self.method(row) in methods]

    def cells(
        self,
        profile: str,
        runs: Path | str = RUNS,
        *,
        data: Sequence[str] | None = None,
        only: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        seeds: int = SEEDS,
        data_dir: Path | None = None,
        rounds: int = 0,
    ) -> list[Cell]:
        """Return the runs seed by seed, so that every row has its first seed early.

        Data sets are read in their official formats from `data_dir/NAME` or from `data_dir`, if that is given. Runs
        that end after `rounds` have a folder of their own.
        """
        shape = self._profile(profile)
        single = self.rows if shape.get("one_seed") == "all" else shape.get("one_seed", [])
        rows = self.rows_of(profile, only or (), methods or ())
        place = self.place(runs, profile, rounds)
        for name in data or ():
            check_name("data set", name, [known.name for known in data_names()])
        cells = []
        for seed, where, row in product(range(seeds), data or shape["data"], rows):
            if seed and row in single:
                continue
            config = self.config(profile, row, where, seed)
            values = dict(config) | {"rounds": min(rounds or config.rounds, config.rounds)}
            if data_dir is not None:
                values["data_dir"] = data_dir / where if (data_dir / where).is_dir() else data_dir
            folder = RunFolder(place / where / f"{_file_name(row)}-{seed}")
            cells.append(Cell(row, where, seed, RunConfig.checked(values), folder))
        return cells

    def place(self, runs: Path | str, profile: str, rounds: int = 0) -> Path:
        """Return the folder of the runs with a profile."""
        folder = Path(runs) / profile / self.name
        return folder / f"{rounds}{LIMITED}" if rounds else folder

    def has(self, cells: Sequence[Cell], profile: str) -> bool:
        """Return whether all cells belong to the grid of a profile, and not to other data sets or further seeds."""
        return set(map(str, cells)) <= set(map(str, self.cells(profile)))

    def config(self, profile: str, row: str, data: str, seed: int) -> RunConfig:
        """Return the settings of a run."""
        shape = self._profile(profile)
        own = dict(self.rows[row])
        method = own.pop("method", row)
        factor = own.pop("times_target", 1.0)
        given: dict[str, Any] = {
            **self.settings,
            **shape.get("settings", {}),
            **_of_method(method, shape.get("by_data", {}).get(data, {})),
            **own,
            **shape.get("by_row", {}).get(row, {}),
            "data": data,
            "seed": seed,
        }
        config = resolve(method, profile=profile, given=given)
        if factor == 1.0:
            return config
        target = round(config.model_dump()["target"] * factor, 6)
        return resolve(method, profile=profile, given=given | {"target": target})

    def _profile(self, profile: str) -> dict[str, Any]:
        check_name("profile", profile, self.profiles)
        return self.profiles[profile]


def _of_method(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return those of the settings that the method has; settings of masks, for instance, are for methods with masks."""
    known = {name for kind in (*RUN_GROUPS, *METHODS[method].settings) for name in kind.model_fields}
    return {name: value for name, value in settings.items() if name in known}


@cache
def load(name: str) -> Experiment:
    """Load the experiment with this name. Experiments of the toy model cannot be loaded, since they have no grid."""
    check_name("experiment", name, NAMES)
    if name in TOYS:
        raise InvalidArgument(f"{name} is a simulation without training: it has no runs")
    return Experiment(name, **tomllib.loads((_NAMED / f"{name}.toml").read_text()))


def comparable(config: RunConfig, *without: str) -> dict[str, Any]:
    """Return the settings that decide the result of a run; the location of its data set is not among them."""
    return config.model_dump(mode="json", exclude={"data_dir", *without})


def row_in(folder: Path, method: str) -> str | None:
    """Return the row whose run lies in `folder`; None if the run is not where `klms experiment run` would put it."""
    place = folder.parent.parent
    if place.name.endswith(LIMITED):
        place = place.parent
    if place.name not in TRAINED:
        return None
    experiment = load(place.name)
    wanted = folder.name.rpartition("-")[0]
    return next((row for row in experiment.rows if (_file_name(row), experiment.method(row)) == (wanted, method)), None)


def _file_name(row: str) -> str:
    return row.replace(", ", "-").replace(" ", "-")
