"""The paper's experiments by name: short files under `named/` that show their grids, read here.

A file has `rows` (a name and the settings that make it; `method` is the name unless given), `settings` for all rows,
and for each profile the data sets, settings of its own, by row (`by_row`) and by data set (`by_data`). What is said
later wins: the method's profile, the experiment, the experiment's profile, its data set, the row, its row, the seed.
`times_target` in a row multiplies the KL target that the profile gives the method. `one_seed` names the rows that one
seed is enough for; `series` the ledger fields that results keep round by round.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from klms.experiments.settings import SettingsError, check_name, resolve
from klms.experiments.toy import TOYS
from klms.methods.config import RunConfig


@dataclass(frozen=True)
class Cell:
    """One run of an experiment."""

    row: str
    data: str
    seed: int
    config: RunConfig

    def reading(self, folder: Path) -> "Cell":
        """The same, on data in its official format in `folder/NAME`, or in `folder` itself."""
        own = folder / self.data
        return replace(self, config=self.config.model_copy(update={"data_dir": own if own.is_dir() else folder}))

    def shortened(self, rounds: int) -> "Cell":
        """The same, for a look: it ends after so many rounds."""
        return replace(self, config=self.config.model_copy(update={"rounds": min(rounds, self.config.rounds)}))

    def folder(self, runs: Path) -> Path:
        """Where it lies under the experiment's folder."""
        name = self.row.replace(", ", "-").replace(" ", "-")
        return runs / self.data / f"{name}-{self.seed}"


@dataclass(frozen=True)
class Experiment:
    """A grid of runs."""

    name: str
    content: dict[str, Any]

    @property
    def title(self) -> str:
        """What it shows."""
        return str(self.content["title"])

    @property
    def series(self) -> list[str]:
        """Ledger fields that its results keep."""
        return list(self.content.get("series", []))

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The settings of each row."""
        return dict(self.content["rows"])

    def method(self, row: str) -> str:
        """Which method a row runs."""
        return str(self.rows[row].get("method", row))

    def cells(self, profile: str, *, data: Sequence[str] = (), only: Sequence[str] = (), seeds: int = 3) -> list[Cell]:
        """The runs, seed by seed, so that the first seed of everything is there first."""
        shape = self._profile(profile)
        known = {self.method(row) for row in self.rows} | set(self.rows)
        for name in only:
            check_name(f"row or method of {self.name}", name, sorted(known))
        single = shape.get("one_seed", [])
        cells = []
        for seed in range(seeds):
            for where in data or shape["data"]:
                for row in self.rows:
                    wanted = not only or row in only or self.method(row) in only
                    if wanted and (seed == 0 or not (single == "all" or row in single)):
                        cells.append(Cell(row, where, seed, self.config(profile, row, where, seed)))
        return cells

    def config(self, profile: str, row: str, data: str, seed: int) -> RunConfig:
        """The configuration of one run."""
        shape = self._profile(profile)
        own = {name: value for name, value in self.rows[row].items() if name not in ("method", "times_target")}
        given: dict[str, Any] = {
            **self.content.get("settings", {}),
            **shape.get("settings", {}),
            **shape.get("by_data", {}).get(data, {}),
            **own,
            **shape.get("by_row", {}).get(row, {}),
            "data": data,
            "seed": seed,
        }
        config = resolve(self.method(row), profile=profile, given=given)
        factor = self.rows[row].get("times_target", 1.0)
        return (
            config
            if factor == 1.0
            else resolve(self.method(row), profile=profile, given=given | {"target": round(config.target * factor, 6)})
        )

    def _profile(self, profile: str) -> dict[str, Any]:
        check_name("profile", profile, self.content["profiles"])
        return dict(self.content["profiles"][profile])


def names() -> list[str]:
    """Every experiment, toys included."""
    return sorted([path.name.removesuffix(".toml") for path in _folder() if path.name.endswith(".toml")] + [*TOYS])


def load(name: str) -> Experiment:
    """The named experiment."""
    check_name("experiment", name, names())
    if name in TOYS:
        raise SettingsError(f"{name} is not made of runs")
    (file,) = (path for path in _folder() if path.name == f"{name}.toml")
    return Experiment(name, tomllib.loads(file.read_text()))


def _folder() -> list[Any]:
    return list(resources.files("klms.experiments").joinpath("named").iterdir())
