"""Writing of files that must survive: readers see the old content or the new one, and a failure is a typed error."""

import os
from pathlib import Path
from typing import Literal

from klms.errors import RunFolderError


def replace(path: Path, content: bytes) -> None:
    """Write a file completely or not at all, whatever happens in between."""
    temporary = path.with_name(path.name + ".new")
    try:
        _write(temporary, "wb", content)
        os.replace(temporary, path)
    except OSError as error:
        _discard(temporary)  # a partial file would take what is left of a full disk
        raise _cannot_write(path, error) from error


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file. If that fails in the middle, what was there before is still there."""
    try:
        _write(path, "ab", content)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _write(path: Path, mode: Literal["ab", "wb"], content: bytes) -> None:
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the folder is read-only, or the name is taken by a folder: there is nothing of ours to remove


def _cannot_write(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"{path} cannot be written ({error.strerror}): what was written before is kept")
