"""The cache: one .npz file per data set, written completely or not at all, and checked when it is read."""

import operator
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from klms import files
from klms.data.archive import read_arrays
from klms.data.dataset import LARGEST_FILE, Dataset, checked_images
from klms.data.text import Corpus, checked_corpus
from klms.errors import DataError

# This number increases when a reader's result for the same files changes, so that older caches are not used.
VERSION = 1
_LARGEST = 4 * LARGEST_FILE  # images and labels, for training and for testing


def location(name: str, folder: Path | str | None = None) -> Path:
    """The cached file of a data set: in `folder`, else in `$KLMS_DATA`, else in `klms` in the user's cache folder."""
    if folder is None:
        own = os.environ.get("KLMS_DATA")
        shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(own) if own else Path(shared) / "klms"
    return Path(folder) / f"{name}.npz"


def write(path: Path, data: Dataset | Corpus) -> None:
    """Store a checked data set, or raise `DataError`. A reader sees the old file or the new one, never a part."""
    arrays = {field: value for field, value in vars(data).items() if isinstance(value, np.ndarray)}
    if isinstance(data, Corpus):
        # The words are stored as one text, because an array of strings pads every word to the longest one.
        arrays["words"] = np.frombuffer("\n".join(data.words).encode(), np.uint8)
    else:
        arrays["classes"] = np.array(data.classes, np.int64)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            np.savez(file, allow_pickle=False, version=np.array(VERSION), **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be stored ({error}); set KLMS_DATA to another folder") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def read(path: Path, name: str) -> Dataset | Corpus:
    """Return the data set that `write` of this release stored, with all checksums verified, or raise `DataError`."""
    try:
        with files.opened(path, _LARGEST) as file:
            # `write` does not compress, so it cannot have written a file that unpacks to more than the file's size.
            arrays: dict[str, Any] = dict(read_arrays(file, path.stat().st_size))
        if operator.index(arrays.pop("version")) != VERSION:
            raise DataError("it was stored by another release")
        if "words" in arrays:
            words = arrays.pop("words").tobytes().decode().split("\n")
            return checked_corpus(Corpus(name, tuple(words), **arrays))
        classes = operator.index(arrays.pop("classes"))
        arrays = {"train_owner": None, "test_owner": None, **arrays}
        return checked_images(Dataset(name, classes=classes, kind="image", **arrays))
    except Exception as error:  # zipfile and NumPy raise almost any kind of error for a damaged file
        raise DataError(f"{path} is damaged or outdated ({error})") from error
