"""The cache: one .npz file a data set, written whole or not at all, and never trusted when it is read."""

import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from klms.data.dataset import Dataset, check_images
from klms.data.errors import DataError
from klms.data.text import Corpus, check_corpus

# Raised when a reader changes what it makes of the same files, so that what an older release kept is not used.
VERSION = 1
_CORPUS = ("tokens", "bounds", "owners", "held_out")


def location(name: str, folder: Path | None = None) -> Path:
    """Where a data set is kept: in `folder`, else in `$KLMS_DATA`, else in `klms` of the user's cache folder."""
    if folder is None:
        own = os.environ.get("KLMS_DATA")
        shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(own) if own else Path(shared) / "klms"
    return folder / f"{name}.npz"


def write(path: Path, data: Dataset | Corpus) -> None:
    """Keep what was checked. A reader sees the old file or the new one, whatever happens in between."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    if isinstance(data, Corpus):
        arrays = {field: getattr(data, field) for field in _CORPUS}
        # As one text: an array of strings would give each word the room of the longest.
        arrays["words"] = np.frombuffer("\n".join(data.words).encode(), np.uint8)
    else:
        arrays = {"train_x": data.train_x, "train_y": data.train_y, "test_x": data.test_x, "test_y": data.test_y}
        arrays["classes"] = np.array(data.classes, np.int64)
        if data.train_owner is not None and data.test_owner is not None:
            arrays |= {"train_owner": data.train_owner, "test_owner": data.test_owner}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            np.savez(file, allow_pickle=False, version=np.array(VERSION), **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path, name: str) -> Dataset | Corpus:
    """What `write` of this release kept. Every array is read to its checksum; anything else is a `DataError`."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {field: file[field] for field in file.files}
        if int(arrays.pop("version")) != VERSION:
            raise DataError("kept by another release")
        if "words" in arrays:
            words = arrays.pop("words").tobytes().decode().split("\n")
            corpus = Corpus(name, tuple(words), **arrays)
            check_corpus(corpus)
            return corpus
        classes = int(arrays.pop("classes"))
        owners = {half: arrays.pop(half, None) for half in ("train_owner", "test_owner")}
        dataset = Dataset(name, classes=classes, kind="image", **arrays, **owners)
        check_images(dataset)
        return dataset
    except Exception as error:  # zipfile and numpy raise almost any kind for a damaged file
        raise DataError(f"{path} is damaged or old ({error})") from error
