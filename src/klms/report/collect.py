"""Find run folders and read them in whatever state they are: finished, under way or damaged."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from klms.engine.federation import RunDescription
from klms.engine.ledger import LedgerRecord, bits_per_parameter, last_evaluated
from klms.engine.stopping import complete
from klms.errors import InvalidArgument, RunFolderError
from klms.experiments.catalogue import row_in
from klms.methods.entry import ClientSettings
from klms.printable import printable
from klms.report.curves import Column, columns
from klms.runs.run_files import CONFIG, DESCRIPTION, METRICS, TABLE, VERSIONS
from klms.runs.run_folder import RunFolder

FILES = (CONFIG, METRICS, TABLE, DESCRIPTION, VERSIONS)
"""Files of a run that the report offers to its readers."""
LONGEST_TEXT = 120

T = TypeVar("T")


@dataclass(frozen=True)
class ReportedRun:
    """A run folder as the report shows it."""

    name: str
    folder: Path
    method: str
    title: str
    """Name of the run's row in its experiment; the name of the method if the run belongs to no experiment."""
    seed: str
    rounds: int
    """Maximum number of rounds of the run."""
    finished: bool
    settings: dict[str, object]
    versions: dict[str, str]
    """Versions of the packages that the run used; empty if the folder does not state them."""
    description: RunDescription
    bounds: list[int]
    """Block bounds of the last checkpoint; empty if it has no blocks, or if the checkpoint's round is not shown."""
    records: list[LedgerRecord]
    """One record per completed round, at least one."""
    evaluated: LedgerRecord
    """The last record that holds an evaluation; the last record if no record does."""
    columns: dict[str, Column]
    bits: float
    """Bits per parameter of the uplink."""


@dataclass(frozen=True)
class Remark:
    """A folder, and the reason why the folder, or a part of it, is not in the report."""

    name: str
    why: str


@dataclass
class Collected:
    """The runs that were found."""

    runs: list[ReportedRun] = field(default_factory=list)
    left_out: list[Remark] = field(default_factory=list)
    incomplete: list[Remark] = field(default_factory=list)
    """Runs that are shown without their damaged parts."""


def collect(places: Sequence[Path | str]) -> Collected:
    """Read all runs in `places`: run folders, or folders that contain run folders at any depth."""
    found = Collected()
    seen: set[Path] = set()

    def leave_out(name: object, why: object) -> None:
        found.left_out.append(Remark(text(name), text(why)))

    for place in map(Path, places):
        if not place.is_dir():
            leave_out(place, "this is not a folder" if place.exists() else "there is no such folder")
            continue
        for folder in run_folders(place, lambda error: leave_out(error.filename, error.strerror)):
            real = folder.resolve()
            if real in seen:
                continue
            seen.add(real)
            name = real.name if folder == place else str(folder.relative_to(place))
            if len(places) > 1:  # folders of several places may have the same name: the whole path tells them apart
                name = str(folder)
            try:
                run, notes = _read(RunFolder(folder), text(name))
            except (RunFolderError, ValueError, OverflowError) as error:  # numbers may have thousands of digits
                leave_out(name, error)
                continue
            found.runs.append(run)
            if notes:
                why = f"{text('; '.join(notes))}; rounds shown: {len(run.records)}"
                found.incomplete.append(Remark(run.name, why))
    return found


def run_folders(place: Path, failed: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Find run folders under `place`, without entering run folders, hidden folders or links."""
    for path, folders, files in os.walk(place, onerror=failed):
        if CONFIG in (*files, *folders):  # even a folder of this name, about which the reader then complains
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def text(value: object) -> str:
    """Return one line that can be shown anywhere, without control characters; a long text is cut in the middle."""
    shown = printable(value)
    half = LONGEST_TEXT // 2
    return shown if len(shown) <= LONGEST_TEXT else f"{shown[: half - 1]}…{shown[-half:]}"


def _read(folder: RunFolder, name: str) -> tuple[ReportedRun, list[str]]:
    """Return a run, and notes about damage in its folder."""
    settings = folder.settings()
    records, note = folder.read_ledger()
    if not records:
        raise RunFolderError(note or "no round is done yet")
    notes = [note] if note else []

    def sound(read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except RunFolderError as error:
            notes.append(str(error))
            return otherwise

    versions: dict[str, str] = sound(folder.versions, {}) if (folder.path / VERSIONS).exists() else {}
    description = sound(folder.description, RunDescription())
    nothing: tuple[int, list[int]] = (0, [])
    checkpointed, bounds = sound(folder.checkpointed_blocks, nothing)
    if checkpointed > len(records):  # the checkpoint is of a round that is not shown
        bounds = []
        if not note:
            notes.append(f"{METRICS} has lost its end: the checkpoint is of round {checkpointed}")
    method = text(settings["method"])
    plan = _plan(settings, len(records))
    run = ReportedRun(
        name=name,
        folder=folder.path,
        method=method,
        title=row_in(folder.path.resolve(), method) or method,
        seed=text(settings.get("seed", 0)),
        rounds=plan.rounds,
        finished=complete(records, plan),
        settings=settings,
        versions={text(package): text(version) for package, version in versions.items()},
        description=description,
        bounds=bounds,
        records=records,
        evaluated=last_evaluated(records) or records[-1],
        columns=columns(records),
        bits=bits_per_parameter(records),
    )
    return run, notes


def _plan(settings: Mapping[str, object], done: int) -> ClientSettings:
    """Return the settings that say when a run ends; if there are none, the run ends after the rounds that are done."""
    known = {name: settings[name] for name in ClientSettings.model_fields if name in settings}
    try:
        return ClientSettings.checked({"rounds": done, **known})
    except InvalidArgument:
        return ClientSettings(rounds=done)
