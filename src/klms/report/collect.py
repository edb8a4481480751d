"""Find run folders and read them as they are: finished, half-written or damaged.

Nothing here needs torch, and nothing trusts a file: a report must come out wherever the folders were copied to, also
while a run writes them. So the files are read plainly, and not through the classes that resume a run.
"""

import json
import math
import os
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

CONFIG, METRICS, CHECKPOINT, FACTS = "config.toml", "metrics.jsonl", "checkpoint.npz", "run.json"
LONGEST_TEXT = 120

Record = dict[str, object]


@dataclass(frozen=True)
class Layer:
    """A layer of the model, in the order of the parameter vector."""

    name: str
    size: int


@dataclass(frozen=True)
class Run:
    """A run folder, read."""

    name: str
    settings: dict[str, object]
    records: list[Record]
    """Lines of the ledger that are whole, in order of their rounds."""
    layers: list[Layer] = field(default_factory=list)
    split: list[list[int]] = field(default_factory=list)
    """Examples of each class, for each client."""
    bounds: list[int] = field(default_factory=list)
    """Where the blocks of the last checkpoint begin, and where the last one ends."""

    @property
    def method(self) -> str:
        """Its method's name."""
        return text(self.settings["method"])

    @property
    def seed(self) -> str:
        """Its seed, as text."""
        return text(self.settings.get("seed", 0))

    @property
    def rounds(self) -> int:
        """Rounds that it is to have."""
        return int(number(self.settings.get("rounds")) or len(self.records))

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return len(self.records) >= self.rounds


@dataclass(frozen=True)
class Skipped:
    """What is not in the report, and why."""

    name: str
    why: str


def collect(places: Iterable[Path]) -> tuple[list[Run], list[Skipped]]:
    """All runs in `places`: run folders, or folders that hold some at any depth."""
    runs: list[Run] = []
    skipped: list[Skipped] = []
    seen: set[Path] = set()
    for place in places:
        if not place.is_dir():
            skipped.append(Skipped(text(place.name), "there is no such folder"))
            continue
        for folder in run_folders(place):
            if (real := folder.resolve()) in seen:
                continue
            seen.add(real)
            inside = folder.relative_to(place)
            name = text(inside.as_posix() if inside.parts else real.name)
            try:
                run, note = read_run(folder, name)
            except ValueError as error:
                skipped.append(Skipped(name, text(error)))
                continue
            runs.append(run)
            if note:
                skipped.append(Skipped(name, note))
    return runs, skipped


def run_folders(place: Path) -> Iterator[Path]:
    """Folders under `place` that hold settings; those inside a run, hidden ones and links are not entered."""
    for path, folders, files in os.walk(place):
        if CONFIG in files:
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def read_run(folder: Path, name: str) -> tuple[Run, str]:
    """A run, and what of it was left out; a `ValueError` says why nothing can be shown."""
    settings = _settings(folder / CONFIG)
    records, note = _ledger(folder / METRICS)
    layers, split = _facts(folder / FACTS)
    return Run(name, settings, records, layers, split, _bounds(folder / CHECKPOINT)), note


def number(value: object) -> float | None:
    """A finite number, or None: ledgers of runs that diverged hold NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def text(value: object) -> str:
    """One line that can be shown anywhere: what is not printable is replaced, what is long is cut."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))
    return shown if len(shown) <= LONGEST_TEXT else shown[: LONGEST_TEXT - 1] + "…"


def _settings(file: Path) -> dict[str, object]:
    try:
        settings = tomllib.loads(file.read_bytes().decode(errors="replace"))
    except OSError as error:
        raise ValueError(f"{CONFIG}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{CONFIG} is not TOML: {error}") from error
    if not isinstance(settings.get("method"), str):
        raise ValueError(f"{CONFIG} names no method")
    return settings


def _ledger(file: Path) -> tuple[list[Record], str]:
    try:
        content = file.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        raise ValueError(f"there is no {METRICS} yet") from None
    except OSError as error:
        raise ValueError(f"{METRICS}: {error.strerror}") from error
    records: list[Record] = []
    note = ""
    lines = content.split("\n")
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            record = _record(json.loads(line), after=len(records))
        except (ValueError, RecursionError) as error:
            if index < len(lines) - 1:  # the last line has no end: it is being written, or was cut
                note = f"line {index + 1} of {METRICS} is damaged ({error}); rounds from there on are left out"
            break
        records.append(record)
    if not records:
        raise ValueError(note or "no round is done yet")
    return records, text(note)


def _record(record: object, after: int) -> Record:
    if not isinstance(record, dict):
        raise ValueError("not an object")
    if record.get("round") != after + 1:
        raise ValueError(f"it should be round {after + 1}")
    for name in ("uplink_bytes", "bits_per_parameter"):
        if number(record.get(name)) is None:
            raise ValueError(f"no {name}")
    return record


def _facts(file: Path) -> tuple[list[Layer], list[list[int]]]:
    """Layers and split of `run.json`; empty where they are missing or make no sense."""
    try:
        facts = json.loads(file.read_bytes())
        layers = [Layer(text(layer["name"]), int(layer["size"])) for layer in facts.get("layers", [])]
        split = [[int(examples) for examples in client] for client in facts.get("split", [])]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return [], []
    if any(layer.size < 0 for layer in layers):
        layers = []
    if (
        len({len(client) for client in split}) > 1
        or [] in split
        or any(examples < 0 for client in split for examples in client)
    ):
        split = []
    return layers, split


_DAMAGED = (
    *(OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What numpy raises, depending on where a file is damaged; a bare array has no names."""


def _bounds(file: Path) -> list[int]:
    """The block map of a checkpoint; empty where there is none. A checkpoint being replaced may be unreadable."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            bounds = np.asarray(stored["shared.block_bounds"])
    except _DAMAGED:
        return []
    if bounds.dtype.kind not in "iu" or bounds.ndim != 1 or bounds.size < 2:
        return []
    if bounds[0] != 0 or np.any(np.diff(bounds) <= 0):
        return []
    return [int(bound) for bound in bounds]
