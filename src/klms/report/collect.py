"""Find run folders and read them in whatever state they are: finished, under way or damaged."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from klms.engine.federation import RunDescription
from klms.engine.ledger import LedgerRecord, bits_per_parameter
from klms.errors import RunFolderError
from klms.experiments.catalogue import row_in
from klms.printable import printable
from klms.runs.run_files import CONFIG, DESCRIPTION, METRICS, TABLE, VERSIONS
from klms.runs.run_folder import RunFolder

FILES = (CONFIG, METRICS, TABLE, DESCRIPTION, VERSIONS)
"""Files of a run that the report offers to its readers."""
LONGEST_TEXT = 120

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """The contents of a run folder."""

    name: str
    folder: Path
    settings: dict[str, object]
    row: str | None
    """Name of its row in the experiment that it belongs to, if it belongs to one."""
    versions: dict[str, str]
    """Versions of the packages that it ran with; empty if the folder does not say."""
    records: list[LedgerRecord]
    """One record per completed round, at least one."""
    description: RunDescription
    bounds: list[int]
    """Block bounds of the last checkpoint; empty if it has none, or belongs to a round that is not shown."""
    bits: float
    """Bits per parameter up."""

    @property
    def method(self) -> str:
        return text(self.settings["method"])

    @property
    def title(self) -> str:
        return self.row or self.method

    @property
    def seed(self) -> str:
        return text(self.settings.get("seed", 0))

    @property
    def rounds(self) -> int:
        rounds = self.settings.get("rounds")
        return rounds if isinstance(rounds, int) else len(self.records)

    @property
    def finished(self) -> bool:
        return len(self.records) >= self.rounds


@dataclass(frozen=True)
class Remark:
    """A folder, and why it or part of it is not in the report."""

    name: str
    why: str


@dataclass
class Collected:
    """The runs that were found."""

    runs: list[Run] = field(default_factory=list)
    left_out: list[Remark] = field(default_factory=list)
    incomplete: list[Remark] = field(default_factory=list)
    """Runs that are shown without what is damaged."""


def collect(places: Sequence[Path | str]) -> Collected:
    """Read all runs in `places`: run folders, or folders that hold some at any depth."""
    found = Collected()
    seen: set[Path] = set()

    def leave_out(name: object, why: object) -> None:
        found.left_out.append(Remark(text(name), text(why)))

    for place in map(Path, places):
        if not place.is_dir():
            leave_out(place, "this is not a folder" if place.exists() else "there is no such folder")
            continue
        for folder in run_folders(place, lambda error: leave_out(error.filename, error.strerror)):
            if (real := folder.resolve()) in seen:
                continue
            seen.add(real)
            # Folders of several places may have the same name: then the whole path tells them apart.
            name = text(folder if len(places) > 1 else real.name if folder == place else folder.relative_to(place))
            try:
                run, note = _read(RunFolder(folder), name)
            except (RunFolderError, ValueError, OverflowError) as error:  # numbers may have thousands of digits
                leave_out(name, error)
                continue
            found.runs.append(run)
            if note:
                found.incomplete.append(Remark(name, f"{text(note)}; rounds shown: {len(run.records)}"))
    return found


def run_folders(place: Path, failed: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Find run folders under `place`, without entering run folders, hidden folders and links."""
    for path, folders, files in os.walk(place, onerror=failed):
        if CONFIG in (*files, *folders):  # whatever it is: the reader says why a folder is no settings file
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def text(value: object) -> str:
    """One line that can be shown anywhere: control characters are escaped, and a long text loses its middle."""
    shown = printable(value)
    half = LONGEST_TEXT // 2
    return shown if len(shown) <= LONGEST_TEXT else f"{shown[: half - 1]}…{shown[-half:]}"


def _read(folder: RunFolder, name: str) -> tuple[Run, str]:
    settings = folder.settings()
    records, note = folder.read_ledger()
    if not records:
        raise RunFolderError(note or "no round is done yet")
    notes = [note] if note else []
    versions: dict[str, str] = _sound(folder.versions, {}, notes) if (folder.path / VERSIONS).exists() else {}
    description = _sound(folder.description, RunDescription(), notes)
    nothing: tuple[int, list[int]] = (0, [])
    checkpointed, bounds = _sound(folder.checkpointed_blocks, nothing, notes)
    if checkpointed > len(records):  # it is of a round that is not shown
        bounds = []
        if not note:
            notes.append(f"{METRICS} has lost its end: the checkpoint is of round {checkpointed}")
    named = {text(name): text(version) for name, version in versions.items()}
    row = row_in(folder.path.resolve(), str(settings["method"]))
    bits = bits_per_parameter(records)
    return Run(name, folder.path, settings, row, named, records, description, bounds, bits), "; ".join(notes)


def _sound(read: Callable[[], T], otherwise: T, notes: list[str]) -> T:
    """Return what can be read; if it is damaged, take note of that."""
    try:
        return read()
    except RunFolderError as error:
        notes.append(str(error))
        return otherwise
