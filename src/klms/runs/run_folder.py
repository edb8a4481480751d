"""The folder of a run: settings, versions, one line per round, and a checkpoint to resume from.

Reading is tolerant, because a report reads folders while they are being written, or after they were copied around:
damaged parts are left out and explained. The line of a round is written before its checkpoint, so a run that is killed
at any moment has at least the lines of its checkpoint; resuming drops lines beyond the checkpoint, and so loses at most
one round. Every file that is read again carries its own digest or checksum (`digests.py`, and the frame of the
checkpoint), and resuming refuses a folder in which a digest or checksum does not match. A folder may come from anybody;
`run_files.py` states the maximum size of every file, and only its functions read and write files.
"""

import csv
import io
import json
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import IO, Self, TypeVar

import numpy as np

import klms
from klms import files
from klms.container import read_some
from klms.engine.federation import RunDescription
from klms.engine.ledger import LedgerRecord
from klms.engine.stopping import complete
from klms.errors import CorruptMessage, InvalidArgument, KLMSError, RunFolderError, UnreadableFile
from klms.frame import BODY, Frame, Kind, body_in, fingerprint
from klms.methods.state import State
from klms.methods.table import RunConfig
from klms.runs import run_files
from klms.runs.digests import key_of, settings_with_digest, settings_without_digest, with_digest, without_digest
from klms.runs.run_files import CHECKPOINT, CONFIG, DESCRIPTION, LOCK, LONGEST_LINE, METRICS, TABLE, VERSIONS
from klms.runs.settings import parse_toml, resolve, to_toml

_LARGEST_BLOCK_MAP = 1 << 27  # bytes of the bounds of 2^24 blocks
_PACKAGES = ("numpy", "numba", "constriction", "torch")
T = TypeVar("T")

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows has no flock: there, users must not run two processes in one folder
    fcntl = None


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
        try:
            made.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be created: {error.strerror}") from error
        versions = with_digest(json.dumps(_versions()), key_of(settings))
        run_files.replace(made.path, VERSIONS, versions.encode())
        run_files.replace(made.path, CONFIG, settings_with_digest(settings).encode())
        return made

    @classmethod
    def open_or_create(cls, path: Path | str, config: RunConfig, description: RunDescription) -> Self:
        """Return the folder of the run in `path`; create it if there is none.

        The run must have these settings, and once a round is complete, this model and data. With more rounds than
        before, it is extended.
        """
        folder = cls(path)
        if not folder.exists():
            return cls.create(path, config)
        found = folder.config()
        if found.model_copy(update={"rounds": max(config.rounds, found.rounds)}) != config:
            odd = ", ".join(name for name, value in config if value != getattr(found, name))
            raise RunFolderError(f"{path} holds a run with other settings ({odd}): use its settings, or another folder")
        begun = RunDescription()
        with suppress(RunFolderError):  # a damaged description is written anew
            begun = folder.description()
        if folder.rounds() and (odd := begun.difference(description)):
            raise RunFolderError(f"{path} was begun with {odd} (resume it with its own, or use another folder)")
        if config.rounds > found.rounds:
            folder.extend(config)
        return folder

    @classmethod
    def check_free(cls, path: Path | str) -> None:
        """Raise a `RunFolderError` if no new run can be created in `path`."""
        if cls(path).exists():
            raise RunFolderError(f"{path} already holds a run: resume it (--resume {path}), or choose another folder")
        if Path(path).exists() and not Path(path).is_dir():
            raise RunFolderError(f"{path} is a file: choose another folder")

    def extend(self, config: RunConfig) -> None:
        """Change the run's number of rounds to that of `config`; it must not be below the number of complete rounds."""
        if config.rounds < self.rounds():
            raise RunFolderError(f"{self.path} has {self.rounds()} rounds already: it cannot end after {config.rounds}")
        with self.locked():
            run_files.replace(self.path, CONFIG, settings_with_digest(to_toml(config)).encode())

    def exists(self) -> bool:
        return (self.path / CONFIG).exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running in this folder; the lock ends with the process, however it ends.

        Files that a killed process was writing are removed.
        """
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
            files.remove_partial(self.path)
            yield

    def settings(self) -> dict[str, object]:
        """Return the settings as written; only the digest, the TOML syntax and the name of a method are checked."""
        try:
            settings = parse_toml(self._settings(), CONFIG)
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

    def describe(self, description: RunDescription) -> None:
        text = json.dumps(description.model_dump(mode="json"))
        run_files.replace(self.path, DESCRIPTION, with_digest(text, self._key).encode())

    def description(self) -> RunDescription:
        """Read the description that `describe` wrote; empty if it is missing or invalid. A wrong digest is an error."""
        try:
            return RunDescription.model_validate_json(self._object(DESCRIPTION))
        except (OSError, ValueError):
            return RunDescription()

    def read_ledger(self) -> tuple[list[LedgerRecord], str]:
        """Return the records of rounds 1, 2, ... up to the first damaged line, and a note on that line.

        A last line without a newline is being written, or was cut short when the run was killed: no note mentions it.
        """
        try:
            lines = run_files.read(self.path, METRICS).split(b"\n")
        except FileNotFoundError:
            return [], f"there is no {METRICS} yet"
        except OSError as error:
            return [], f"{METRICS}: {error.strerror}"
        good: list[LedgerRecord] = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                if len(line) > LONGEST_LINE:
                    raise RunFolderError(f"it has {len(line):,} bytes, and no line has more than {LONGEST_LINE:,}")
                record = LedgerRecord.from_json(without_digest(line.decode(errors="replace"), self._key))
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
        """Return the number of complete rounds: those that are both in the ledger and in the checkpoint."""
        return len(self._checkpointed())

    def complete(self) -> bool:
        """Return whether the run is complete."""
        return complete(self._checkpointed(), self.config())

    def state(self) -> State | None:
        """Return the state to resume from; None before the first round is complete."""
        stored = self._checkpoint(_state)
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
        """Check every file, drop lines beyond the checkpoint, and return the state to resume from."""
        state = self.state()
        if (self.path / VERSIONS).exists():
            self.versions()
        self.rewind(state.round if state else 0)
        return state

    def checkpointed_blocks(self) -> tuple[int, list[int]]:
        """Return the round of the checkpoint, and the bounds of its blocks, if any, from 0 to the size of the model.

        The rest of the checkpoint, which may be as large as many models, is not loaded.
        """
        return self._checkpoint(_round_and_blocks) or (0, [])

    def append(self, record: LedgerRecord, state: State) -> None:
        """Write the line of a round, then the checkpoint after it."""
        run_files.append_line(self.path, self._line(record).encode())
        checkpoint = Frame(Kind.CHECKPOINT, state.round, 0, fingerprint([self._key]), state.to_bytes())
        run_files.replace(self.path, CHECKPOINT, checkpoint.to_bytes())

    def rewind(self, rounds: int) -> None:
        """Drop the ledger's lines after `rounds` rounds."""
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
    def _key(self) -> bytes:
        # A folder that is being written keeps the key that it started with.
        return key_of(self._settings())

    def _checkpointed(self) -> list[LedgerRecord]:
        """Return the records of the rounds up to the checkpoint."""
        return self.read_ledger()[0][: self.checkpointed_blocks()[0]]

    def _settings(self) -> str:
        """Return the text of the settings without its digest."""
        try:
            return settings_without_digest(run_files.read_text(self.path, CONFIG))
        except (OSError, RunFolderError) as error:
            raise RunFolderError(f"{CONFIG}: {getattr(error, 'strerror', error)}") from error

    def _object(self, name: str) -> str:
        """Return the text of a JSON file without its digest."""
        try:
            return without_digest(run_files.read_text(self.path, name), self._key)
        except UnreadableFile as error:
            raise RunFolderError(f"{name}: {error.strerror}") from error
        except RunFolderError as error:
            remedy = f"delete {self.path / name}, which is not needed to resume"
            raise RunFolderError(f"{name} is damaged ({error}): {remedy}") from error

    def _line(self, record: LedgerRecord) -> str:
        return f"{with_digest(record.to_json(), self._key)}\n"

    def _checkpoint(self, read: Callable[[Frame, IO[bytes]], T]) -> T | None:
        """Return what `read` finds in the checkpoint; None if there is none. Damage raises a `RunFolderError`."""
        if not (self.path / CHECKPOINT).exists():
            return None
        try:
            with run_files.opened(self.path, CHECKPOINT) as file:
                frame = Frame.from_file(file, Kind.CHECKPOINT)
                if frame.digest != fingerprint([self._key]):
                    raise CorruptMessage("it is of another run")
                return read(frame, file)
        except OSError as error:
            raise RunFolderError(f"{CHECKPOINT} cannot be read: {error.strerror} (in {self.path})") from error
        except KLMSError as error:
            raise RunFolderError(f"{CHECKPOINT} is damaged ({error}): delete {self.path} and run it again") from error


def _state(frame: Frame, file: IO[bytes]) -> State:
    return State.from_bytes(body_in(file))


def _round_and_blocks(frame: Frame, file: IO[bytes]) -> tuple[int, list[int]]:
    """Return the round of a checkpoint, and the bounds of its blocks if it has a valid block map."""
    name = "shared.block_bounds"
    bounds = read_some(file, BODY, [name], _LARGEST_BLOCK_MAP).get(name, np.zeros(0))
    valid = bounds.dtype.kind in "iu" and bounds.ndim == 1 and bounds.size >= 2
    is_map = valid and bounds[0] == 0 and bool(np.all(np.diff(bounds) > 0))
    return frame.first, bounds.tolist() if is_map else []


def _versions() -> dict[str, str]:
    # Importing torch only to ask for its version would take seconds.
    versions = {"klms": klms.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
