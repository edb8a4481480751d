"""The files of a run folder by name, and the maximum size of each for reading and for writing.

A folder may come from anybody, so all of its files are read through `klms.files`. A file that would be too large to
read again is not written, and the run ends with an error.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from klms import files
from klms.errors import RunFolderError

CONFIG, VERSIONS, METRICS, CHECKPOINT = "config.toml", "versions.json", "metrics.jsonl", "checkpoint.klms"
DESCRIPTION, TABLE, LOCK = "run.json", "metrics.csv", "lock"

LARGEST = {
    CONFIG: 1 << 16,  # a hundred settings in 4 KB, and a long path
    VERSIONS: 1 << 16,  # six packages
    DESCRIPTION: 1 << 26,  # the examples of each of 100 classes at 100,000 clients
    METRICS: 1 << 28,  # 20,000 rounds with 1,000 clients each, at 13 bytes per client and round
    TABLE: 1 << 28,  # numbers of the ledger
    CHECKPOINT: 1 << 34,  # 16 vectors of 2^28 parameters, or residuals of 128 clients with a model of 2^25
}
"""Maximum size of each file in bytes."""
LONGEST_LINE = 1 << 24
"""Maximum size in bytes of a line of the ledger: a round with a million clients."""


def opened(folder: Path, name: str) -> AbstractContextManager[IO[bytes]]:
    """Open a file for reading; raise `UnreadableFile` if it is not a regular file or is too large."""
    return files.opened(folder / name, LARGEST[name])


def read(folder: Path, name: str) -> bytes:
    """Return the content of a file; errors are those of `opened`."""
    return files.read(folder / name, LARGEST[name])


def read_text(folder: Path, name: str) -> str:
    """Return the content of a text file, with replacement characters where it is not UTF-8."""
    return read(folder, name).decode(errors="replace")


def replace(folder: Path, name: str, content: bytes) -> None:
    """Write a file completely or not at all."""
    _check_size(folder / name, len(content), LARGEST[name])
    files.replace(folder / name, content)


def append_line(folder: Path, line: bytes) -> None:
    """Add the line of a round to the ledger."""
    ledger = folder / METRICS
    _check_size(f"a line of {ledger}", len(line), LONGEST_LINE)
    before = ledger.stat().st_size if ledger.exists() else 0
    _check_size(ledger, before + len(line), LARGEST[METRICS])
    files.append(ledger, line)


def _check_size(what: object, size: int, largest: int) -> None:
    if size > largest:
        raise RunFolderError(f"{what} would have {size:,} bytes, but at most {largest:,} can be read again")
