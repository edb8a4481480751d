"""The folder of a run: settings, versions, a line a round, and the state to go on from.

A line is written before the checkpoint of its round. So a run that is killed at any moment has at least the lines of
its checkpoint, and `resume` drops those beyond it: the round under way is all that is lost.
"""

import csv
import io
import json
import os
import platform
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import klms
from klms.experiments.settings import SettingsError, resolve, to_toml
from klms.methods.base import State, json_line
from klms.methods.config import RunConfig

CONFIG, VERSIONS, METRICS, CHECKPOINT = "config.toml", "versions.json", "metrics.jsonl", "checkpoint.npz"
DESCRIPTION, TABLE, LOCK = "run.json", "metrics.csv", "lock"

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: two processes in one folder are the user's to avoid
    fcntl = None


class RunFolder:
    """One run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> "RunFolder":
        """A new run; a folder that holds one is left alone."""
        cls.check_free(path)
        path.mkdir(parents=True, exist_ok=True)
        versions = {"klms": klms.__version__, "python": platform.python_version()}
        versions |= {name: metadata.version(name) for name in ("numpy", "numba", "constriction", "torch")}
        _replace(path / VERSIONS, json.dumps(versions, indent=2).encode())
        _replace(path / CONFIG, to_toml(config).encode())
        return cls(path)

    @staticmethod
    def check_free(path: Path) -> None:
        """A folder that holds a run is not for another."""
        if (path / CONFIG).exists():
            raise SettingsError(f"{path} holds a run already: resume it with --resume {path}, or choose another --out")

    def config(self) -> RunConfig:
        """The settings that the run was started with."""
        file = self.path / CONFIG
        try:
            method = next(line for line in file.read_text().splitlines() if line.startswith("method = "))
        except (OSError, StopIteration) as error:
            raise SettingsError(
                f"{self.path} is not the folder of a run: it has no {CONFIG} that names a method"
            ) from error
        return resolve(json.loads(method.partition("= ")[2]), file=file)

    def state(self) -> State | None:
        """Where the run stands; None before its first round ends."""
        file = self.path / CHECKPOINT
        reached = self.checkpointed()
        last = max((int(str(record["round"])) for record in self.records()), default=0)
        if last < reached:
            raise SettingsError(f"{self.path} has lost lines of {METRICS}: remove it and run it anew")
        return State.from_bytes(file.read_bytes()) if reached else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else runs in this folder meanwhile; the lock ends with the process, however that ends."""
        with (self.path / LOCK).open("a") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise SettingsError(f"another process is running {self.path}: wait for it, or end it") from error
            yield

    def rounds(self) -> int:
        """How many rounds are done: in the ledger, and in the checkpoint."""
        last = 0
        for record in self.records():
            last = int(str(record["round"]))
        return min(last, self.checkpointed())

    def checkpointed(self) -> int:
        """The round of the checkpoint; 0 without one."""
        file = self.path / CHECKPOINT
        if not file.exists():
            return 0
        try:
            with np.load(file, allow_pickle=False) as stored:
                return int(stored["round"])
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise SettingsError(f"{file} is damaged: remove {self.path} and run it anew") from error

    def describe(self, description: Mapping[str, object]) -> None:
        """What the run is on, for those who look at it later: layers, and the clients' data."""
        _replace(self.path / DESCRIPTION, json.dumps(description).encode())

    def description(self) -> dict[str, Any]:
        """What `describe` wrote; no layers where nothing did."""
        file = self.path / DESCRIPTION
        return dict(json.loads(file.read_text())) if file.exists() else {"layers": []}

    def rewind(self, rounds: int) -> None:
        """Drop the lines beyond `rounds`."""
        kept = [json_line(record) for record in self.records() if int(str(record["round"])) <= rounds]
        _replace(self.path / METRICS, "".join(f"{line}\n" for line in kept).encode())

    def append(self, record: dict[str, object], state: State) -> None:
        """A round is done."""
        with (self.path / METRICS).open("a") as file:
            file.write(json_line(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        _replace(self.path / CHECKPOINT, state.to_bytes(private=True))

    def write_table(self) -> None:
        """The ledger as CSV, for those who would rather open a sheet: a column for every number of any round."""
        rows = []
        for record in self.records():
            nested = {f"{k} {n}": v for k, inner in record.items() if isinstance(inner, dict) for n, v in inner.items()}
            rows.append({k: v for k, v in record.items() if isinstance(v, (int, float))} | nested)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
        _replace(self.path / TABLE, text.getvalue().encode())

    def records(self) -> Iterator[dict[str, object]]:
        """The lines so far; a half-written last line is not one."""
        file = self.path / METRICS
        if file.exists():
            for line in file.read_text().splitlines():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError:
                    return


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
