"""The folder of a run: settings, versions, one line per round, and a checkpoint to resume from.

Reading is tolerant, because a report reads folders while they are being written, or after they were copied around: what
is damaged is left out and explained. The line of a round is written before its checkpoint, so a run that is killed at
any moment has at least the lines of its checkpoint; resuming drops those beyond it and loses only that round. Every
file carries a digest of itself (see `seals`), and resuming refuses a folder in which one does not match. A folder may
come from anybody; `run_files` has the largest size of every file, and the only functions that read and write them.
"""

import csv
import io
import json
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import IO, NamedTuple, Self, TypeVar

import numpy as np

import klms
from klms import files
from klms.engine.ledger import LedgerRecord
from klms.errors import CorruptMessage, InvalidArgument, RunFolderError, UnreadableFile
from klms.methods.state import State
from klms.methods.table import RunConfig
from klms.runs import run_files
from klms.runs.run_files import CHECKPOINT, CONFIG, DESCRIPTION, LOCK, LONGEST_LINE, METRICS, TABLE, VERSIONS
from klms.runs.seals import Seal, open_settings, seal_settings
from klms.runs.settings import parse_toml, resolve, to_toml

_LARGEST_BLOCK_MAP = 1 << 27  # bytes of the bounds of 2^24 blocks
_PACKAGES = ("numpy", "numba", "constriction", "torch")
T = TypeVar("T")

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
    tested: int = 0
    """Number of test examples."""


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path | str, config: RunConfig) -> Self:
        """Create the folder of a new run; a `RunFolderError` is raised if `path` holds a run already."""
        cls.check_free(path)
        made = cls(path)
        settings = to_toml(config)
        seal = Seal.of(settings)
        try:
            made.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be created: {error.strerror}") from error
        run_files.replace(made.path, VERSIONS, seal.seal_object(json.dumps(_versions())).encode())
        run_files.replace(made.path, CONFIG, seal_settings(settings).encode())
        return made

    @classmethod
    def open_or_create(cls, path: Path | str, config: RunConfig) -> Self:
        """Return the folder of the run in `path`, which must have these settings; create it if there is none."""
        folder = cls(path)
        if not folder.exists():
            return cls.create(path, config)
        if (found := folder.config()) != config:
            odd = ", ".join(name for name, value in config if value != getattr(found, name))
            raise RunFolderError(f"{path} holds a run with different settings ({odd}): use the same, or another folder")
        return folder

    @classmethod
    def check_free(cls, path: Path | str) -> None:
        """Raise a `RunFolderError` if no new run can be in `path`."""
        if cls(path).exists():
            raise RunFolderError(f"{path} already holds a run: resume it with --resume {path}, or choose another --out")
        if Path(path).exists() and not Path(path).is_dir():
            raise RunFolderError(f"{path} is a file: choose another --out")

    def extend(self, config: RunConfig) -> None:
        """Give the run another number of rounds, those of `config`, which must be at least those that are complete."""
        if config.rounds < self.rounds():
            raise RunFolderError(f"{self.path} has {self.rounds()} rounds already: it cannot end after {config.rounds}")
        with self.locked():
            run_files.replace(self.path, CONFIG, seal_settings(to_toml(config)).encode())

    def exists(self) -> bool:
        return (self.path / CONFIG).exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running in this folder; the lock ends with the process, however that ends."""
        try:
            file = files.open_lock(self.path / LOCK)
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be written: {error.strerror}") from error
        with file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise RunFolderError(f"another process is running {self.path}: wait for it, or stop it") from error
            yield

    def settings(self) -> dict[str, object]:
        """Return the settings as written, unchecked except for their digest, that they are TOML and name a method."""
        try:
            settings = parse_toml(self._settings()[0], CONFIG)
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
            return dict(json.loads(self._object(VERSIONS)))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RunFolderError(f"{self.path / VERSIONS} cannot be read: {error}") from error

    def describe(self, description: Mapping[str, object]) -> None:
        run_files.replace(self.path, DESCRIPTION, self._seal.seal_object(json.dumps(description)).encode())

    def description(self) -> RunDescription:
        """Read what `describe` wrote. What is missing or makes no sense is empty; a wrong digest is an error."""
        try:
            found = json.loads(self._object(DESCRIPTION))
            layers = tuple(Layer(str(layer["name"]), int(layer["size"])) for layer in found.get("layers", []))
            split = tuple(tuple(int(examples) for examples in client) for client in found.get("split", []))
            tested = max(0, int(found.get("tested", 0)))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return RunDescription()
        if any(layer.size < 0 for layer in layers):
            layers = ()
        widths = {len(client) for client in split}
        if len(widths) > 1 or 0 in widths or any(examples < 0 for client in split for examples in client):
            split = ()
        return RunDescription(layers, split, tested)

    def read_ledger(self) -> tuple[list[LedgerRecord], str]:
        """Return the records of rounds 1, 2, ... up to the first damaged line, and a note on that line.

        A last line without a line end is being written, or was cut short when the run was killed: no note mentions it.
        """
        try:
            lines = run_files.read(self.path, METRICS).split(b"\n")
        except FileNotFoundError:
            return [], f"there is no {METRICS} yet"
        except OSError as error:
            return [], f"{METRICS}: {error.strerror}"
        sealed = self._settings()[1]
        good: list[LedgerRecord] = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                if len(line) > LONGEST_LINE:
                    raise RunFolderError(f"it has {len(line):,} bytes, and no line has more than {LONGEST_LINE:,}")
                text = self._seal.open_object(line.decode(errors="replace"), required=sealed)
                record = LedgerRecord.from_json(text)
                if record.round != len(good) + 1:
                    raise RunFolderError(f"round {record.round} instead of {len(good) + 1}")
            except RunFolderError as error:
                if number == len(lines):
                    break
                return good, f"line {number} of {METRICS} is damaged ({error})"
            good.append(record)
        return good, ""

    def records(self) -> Iterator[LedgerRecord]:
        return iter(self.read_ledger()[0])

    def rounds(self) -> int:
        """Return how many rounds are complete, that is, in the ledger and in the checkpoint."""
        return min(len(self.read_ledger()[0]), self.checkpointed())

    def checkpointed(self) -> int:
        """Return the round of the checkpoint; 0 if there is none."""
        return self.checkpointed_blocks()[0]

    def state(self) -> State | None:
        """Return the state to resume from; None before the first round is complete."""
        stored = self._checkpoint(State.read)
        records, note = self.read_ledger()
        if stored is None:
            if len(records) > 1:  # one line may be ahead of its checkpoint
                raise RunFolderError(f"{self.path} has lost its {CHECKPOINT}: delete the folder and run it again")
            return None
        if len(records) < stored.round:
            reason = f" ({note})" if note else ""
            raise RunFolderError(f"{self.path} has lost lines of {METRICS}{reason}: delete the folder and run it again")
        return stored

    def resume(self) -> State | None:
        """Check every file, drop lines beyond the checkpoint, and return the state to resume from.

        A folder of a release without digests gets them, the settings last: whoever has those has all.
        """
        state, sealed = self.state(), self._settings()[1]
        versions = self.versions() if (self.path / VERSIONS).exists() else None
        self.rewind(state.round if state else 0)
        if not sealed:
            warnings.warn(f"{self.path} has no digests yet: damage before now would not be noticed", stacklevel=2)
            if versions is not None:
                run_files.replace(self.path, VERSIONS, self._seal.seal_object(json.dumps(versions)).encode())
            if state is not None:
                self._write_checkpoint(state)
            run_files.replace(self.path, CONFIG, seal_settings(self._settings()[0]).encode())
        return state

    def checkpointed_blocks(self) -> tuple[int, list[int]]:
        """Return the round of the checkpoint, and the bounds of its blocks, from 0 to the size of the model, if any.

        The rest of the checkpoint, which may be as large as many models, is not loaded.
        """
        return self._checkpoint(_round_and_blocks) or (0, [])

    def append(self, record: LedgerRecord, state: State) -> None:
        """Write the line of a round, then the checkpoint after it."""
        run_files.append_line(self.path, self._line(record).encode())
        self._write_checkpoint(state)

    def rewind(self, rounds: int) -> None:
        """Drop the lines after so many rounds."""
        records, _ = self.read_ledger()
        run_files.replace(self.path, METRICS, "".join(map(self._line, records[:rounds])).encode())

    def write_table(self) -> None:
        """Write the ledger as CSV for spreadsheets, with a column for every number of any round."""
        rows = [{"round": record.round, **record.numbers()} for record in self.records()]
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
        run_files.replace(self.path, TABLE, text.getvalue().encode())

    @cached_property
    def _seal(self) -> Seal:
        # A folder that is being written keeps the seal that it started with.
        return Seal.of(self._settings()[0])

    def _settings(self) -> tuple[str, bool]:
        """Return the text of the settings without its digest, and whether it has one."""
        try:
            return open_settings(run_files.read_text(self.path, CONFIG))
        except OSError as error:
            raise RunFolderError(f"{CONFIG}: {error.strerror}") from error
        except RunFolderError as error:
            raise RunFolderError(f"{CONFIG}: {error}") from error

    def _object(self, name: str) -> str:
        """Return the text of a JSON file without its digest."""
        try:
            return self._seal.open_object(run_files.read_text(self.path, name), required=self._settings()[1])
        except UnreadableFile as error:
            raise RunFolderError(f"{name}: {error.strerror}") from error
        except RunFolderError as error:
            remedy = f"delete {self.path / name}, which is not needed to resume"
            raise RunFolderError(f"{name} is damaged ({error}): {remedy}") from error

    def _line(self, record: LedgerRecord) -> str:
        return f"{self._seal.seal_object(record.to_json())}\n"

    def _write_checkpoint(self, state: State) -> None:
        run_files.replace(self.path, CHECKPOINT, self._seal.seal_archive(state.to_bytes(private=True)))

    def _checkpoint(self, read: Callable[[IO[bytes]], T]) -> T | None:
        """Return what `read` finds in the checkpoint; None if there is none. Damage raises a `RunFolderError`."""
        if not (self.path / CHECKPOINT).exists():
            return None
        sealed = self._settings()[1]
        try:
            with run_files.opened(self.path, CHECKPOINT) as file:
                self._seal.check_archive(file, required=sealed)
                return read(file)
        except OSError as error:
            raise RunFolderError(f"{CHECKPOINT} cannot be read: {error.strerror} (in {self.path})") from error
        except (RunFolderError, CorruptMessage) as error:
            raise RunFolderError(f"{CHECKPOINT} is damaged ({error}): delete {self.path} and run it again") from error


def _round_and_blocks(checkpoint: IO[bytes]) -> tuple[int, list[int]]:
    """Return the round of a checkpoint, and the bounds of its blocks if they are a block map."""
    stored = State.read(checkpoint, only=("round", "shared.block_bounds"), limit=_LARGEST_BLOCK_MAP)
    bounds = np.asarray(stored.shared.get("block_bounds", []))
    valid = bounds.dtype.kind in "iu" and bounds.ndim == 1 and bounds.size >= 2
    is_map = valid and bounds[0] == 0 and bool(np.all(np.diff(bounds) > 0))
    return stored.round, bounds.tolist() if is_map else []


def _versions() -> dict[str, str]:
    # Importing torch only to ask for its version would take seconds.
    versions = {"klms": klms.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
