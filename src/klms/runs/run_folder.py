"""The folder of a run: settings, versions, one line per round, and a checkpoint to resume from.

Reading is tolerant, because a report reads folders while they are being written, or after they were copied around: what
is damaged is left out and explained. The line of a round is written before its checkpoint, so a run that is killed at
any moment has at least the lines of its checkpoint; resuming drops those beyond it and loses only that round.
"""

import csv
import io
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import IO, Literal, NamedTuple, Self

import numpy as np

import klms
from klms.engine.ledger import LedgerRecord
from klms.errors import InvalidArgument, RunFolderError
from klms.methods.state import State
from klms.methods.table import RunConfig
from klms.runs.settings import read_toml, resolve, to_toml

CONFIG, VERSIONS, METRICS, CHECKPOINT = "config.toml", "versions.json", "metrics.jsonl", "checkpoint.npz"
DESCRIPTION, TABLE, LOCK = "run.json", "metrics.csv", "lock"

_PACKAGES = ("numpy", "numba", "constriction", "torch")

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows has no flock: there, users must not run two processes in one folder
    fcntl = None


class Layer(NamedTuple):
    """A layer of the model, in the order of the parameter vector."""

    name: str
    size: int


class RunDescription(NamedTuple):
    """What a run trained, and on which data; fields are empty where the folder does not say."""

    layers: tuple[Layer, ...] = ()
    split: tuple[tuple[int, ...], ...] = ()
    """Examples per class, for each client."""


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> Self:
        """Create the folder of a new run; a `RunFolderError` is raised if `path` holds a run already."""
        cls.check_free(path)
        path.mkdir(parents=True, exist_ok=True)
        _replace(path / VERSIONS, json.dumps(_versions(), indent=2).encode())
        _replace(path / CONFIG, to_toml(config).encode())
        return cls(path)

    @classmethod
    def open_or_create(cls, path: Path, config: RunConfig) -> Self:
        """Return the folder of the run in `path`, which must have these settings; create it if there is none."""
        folder = cls(path)
        if not folder.exists():
            return cls.create(path, config)
        if (found := folder.config()) != config:
            odd = ", ".join(name for name, value in config if value != getattr(found, name))
            raise RunFolderError(f"{path} holds a run with different settings ({odd}): use the same, or another folder")
        return folder

    @classmethod
    def check_free(cls, path: Path) -> None:
        if cls(path).exists():
            raise RunFolderError(f"{path} already holds a run: resume it with --resume {path}, or choose another --out")

    def exists(self) -> bool:
        return (self.path / CONFIG).exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running in this folder; the lock ends with the process, however that ends."""
        with (self.path / LOCK).open("a") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise RunFolderError(f"another process is running {self.path}: wait for it, or stop it") from error
            yield

    def settings(self) -> dict[str, object]:
        """Return the settings as written, unchecked except that they are TOML and name a method."""
        try:
            settings = read_toml(self.path / CONFIG, CONFIG)
        except InvalidArgument as error:
            raise RunFolderError(str(error)) from error
        if not isinstance(settings.get("method"), str):
            raise RunFolderError(f"{CONFIG} names no method")
        return settings

    def config(self) -> RunConfig:
        if not self.exists():
            raise RunFolderError(f"{self.path} is not the folder of a run: it has no {CONFIG}")
        try:
            settings = self.settings()
            return resolve(str(settings["method"]), given=settings)
        except (RunFolderError, InvalidArgument) as error:
            raise RunFolderError(f"{self.path}: {error}") from error

    def versions(self) -> dict[str, str]:
        try:
            return dict(json.loads((self.path / VERSIONS).read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise RunFolderError(f"{self.path / VERSIONS} cannot be read: {error}") from error

    def describe(self, description: Mapping[str, object]) -> None:
        _replace(self.path / DESCRIPTION, json.dumps(description).encode())

    def description(self) -> RunDescription:
        """Read what `describe` wrote; whatever is missing or makes no sense is left empty."""
        try:
            found = json.loads((self.path / DESCRIPTION).read_bytes())
            layers = tuple(Layer(str(layer["name"]), int(layer["size"])) for layer in found.get("layers", []))
            split = tuple(tuple(int(examples) for examples in client) for client in found.get("split", []))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return RunDescription()
        if any(layer.size < 0 for layer in layers):
            layers = ()
        widths = {len(client) for client in split}
        if len(widths) > 1 or 0 in widths or any(examples < 0 for client in split for examples in client):
            split = ()
        return RunDescription(layers, split)

    def read_ledger(self) -> tuple[list[LedgerRecord], str]:
        """Return the records of rounds 1, 2, ... up to the first damaged line, and a note on what is left out.

        A last line without a line end is being written, or was cut short when the run was killed: no note mentions it.
        """
        lines, note = self._ledger()
        return [record for _, record in lines], note

    def records(self) -> Iterator[LedgerRecord]:
        return iter(self.read_ledger()[0])

    def rounds(self) -> int:
        """Return how many rounds are complete, that is, in the ledger and in the checkpoint."""
        return min(len(self.read_ledger()[0]), self.checkpointed())

    def checkpointed(self) -> int:
        """Return the round of the checkpoint; 0 if there is none."""
        with suppress(FileNotFoundError), self._checkpoint() as file, np.load(file, allow_pickle=False) as stored:
            return int(stored["round"])
        return 0

    def state(self) -> State | None:
        """Return the state to resume from; None before the first round is complete."""
        reached = self.checkpointed()
        if not reached:
            return None
        records, note = self.read_ledger()
        if len(records) < reached:
            reason = f" ({note})" if note else ""
            raise RunFolderError(f"{self.path} has lost lines of {METRICS}{reason}: delete the folder and run it again")
        with self._checkpoint() as file:
            return State.from_bytes(file.read())

    def block_bounds(self) -> list[int]:
        """Return the bounds of the checkpoint's blocks, from 0 to the number of parameters; empty if it has none."""
        try:
            with self._checkpoint() as file, np.load(file, allow_pickle=False) as stored:
                bounds = np.asarray(stored["shared.block_bounds"])
        except (FileNotFoundError, RunFolderError):
            return []
        valid = bounds.dtype.kind in "iu" and bounds.ndim == 1 and bounds.size >= 2
        return bounds.tolist() if valid and bounds[0] == 0 and np.all(np.diff(bounds) > 0) else []

    def append(self, record: LedgerRecord, state: State) -> None:
        """Write the line of a round, then the checkpoint after it."""
        _write(self.path / METRICS, "ab", f"{record.to_json()}\n".encode())
        _replace(self.path / CHECKPOINT, state.to_bytes(private=True))

    def rewind(self, rounds: int) -> None:
        lines, _ = self._ledger()
        _replace(self.path / METRICS, "".join(f"{line}\n" for line, _ in lines[:rounds]).encode())

    def write_table(self) -> None:
        """Write the ledger as CSV for spreadsheets, with a column for every number of any round."""
        rows = [{"round": record.round, **record.numbers()} for record in self.records()]
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
        _replace(self.path / TABLE, text.getvalue().encode())

    def _ledger(self) -> tuple[list[tuple[str, LedgerRecord]], str]:
        try:
            lines = (self.path / METRICS).read_bytes().decode(errors="replace").split("\n")
        except FileNotFoundError:
            return [], f"there is no {METRICS} yet"
        except OSError as error:
            return [], f"{METRICS}: {error.strerror}"
        good: list[tuple[str, LedgerRecord]] = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = LedgerRecord.from_json(line)
                if record.round != len(good) + 1:
                    raise RunFolderError(f"round {record.round} instead of {len(good) + 1}")
            except RunFolderError as error:
                if number == len(lines):
                    break
                return good, f"line {number} of {METRICS} is damaged ({error}); it and all later rounds are left out"
            good.append((line, record))
        return good, ""

    @contextmanager
    def _checkpoint(self) -> Iterator[IO[bytes]]:
        """Open the checkpoint; a `RunFolderError` is raised for damage, `FileNotFoundError` where there is none."""
        try:
            with (self.path / CHECKPOINT).open("rb") as file:
                yield file
        except FileNotFoundError:
            raise
        except Exception as error:  # NumPy's reader raises almost any kind, depending on where the damage is
            raise RunFolderError(f"{self.path / CHECKPOINT} is damaged: delete {self.path} and run it again") from error


def _versions() -> dict[str, str]:
    # Importing torch only to ask for its version would take seconds.
    versions = {"klms": klms.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    _write(temporary, "wb", content)
    os.replace(temporary, path)


def _write(path: Path, mode: Literal["ab", "wb"], content: bytes) -> None:
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
