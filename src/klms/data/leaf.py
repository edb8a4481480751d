"""LEAF's JSON: `{"users": [...], "user_data": {user: {"x": [...], "y": [...]}}}`, in `train` and `test` folders."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from klms.data.dataset import Dataset, images
from klms.data.errors import DataError
from klms.data.text import Corpus, Document, collect, words_of

_MARKS = frozenset(("<PAD>", "<BOS>", "<EOS>", "<pad>", "<bos>", "<eos>"))


def image(name: str, folder: Path, classes: int) -> Dataset:
    """Square grey images in `[0, 1]`, one flat list each, by writer (FEMNIST)."""
    writers: dict[str, int] = {}
    halves: dict[str, list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], int]]] = {"train": [], "test": []}
    for half, user, x, y, origin in _users(folder):
        if half is None:
            raise DataError(f"{folder} has no train and test folders; run LEAF's preprocess.sh with -t sample")
        if x:
            halves[half].append((*_pixels(x, y, origin), writers.setdefault(user, len(writers))))
    if not all(halves.values()):
        raise DataError(f"{folder} has no images for training or none for testing")
    train, test = ([np.concatenate([part[i] for part in half]) for i in (0, 1)] for half in halves.values())
    owners = [np.repeat([w for _, _, w in half], [len(y) for _, y, _ in half]) for half in halves.values()]
    return images(name, (train[0], train[1]), (test[0], test[1]), classes, (owners[0], owners[1]))


def _pixels(x: list[object], y: list[object], origin: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    try:
        values = np.array(x, np.float64)
        labels = np.array(y, np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{origin}: images must be flat lists of numbers, labels integers ({error})") from error
    side = round(values.shape[-1] ** 0.5)
    if values.ndim != 2 or side * side != values.shape[1] or labels.shape != values.shape[:1]:
        raise DataError(
            f"{origin}: images {values.shape} and labels {labels.shape} are not square images, one label each"
        )
    if not (values.min() >= 0 and values.max() <= 1):
        raise DataError(f"{origin}: pixels must be in [0, 1]")
    return np.rint(values * 255).astype(np.uint8).reshape(-1, 1, side, side), labels


def text(name: str, folder: Path) -> Corpus:
    """Text by user: an `x` is a sentence, a list of words, or a list of such lists; or LEAF's windows of characters.

    A `y` that the next word makes redundant, or that is no word, is not used.
    """
    documents = [
        Document(user, words, None if half is None else half == "test")
        for half, user, x, y, origin in _users(folder)
        for words in _documents(x, y, origin)
    ]
    return collect(name, documents)


def _documents(x: list[object], y: list[object], origin: str) -> Iterator[list[str]]:
    windows = [window for window in x if isinstance(window, str)]
    following = [character for character in y if isinstance(character, str) and len(character) == 1]
    if len(windows) == len(following) == len(x):
        yield from (words_of(passage) for passage in _rejoined(windows, following))
        return
    for sentence in x:
        try:
            yield _words(sentence)
        except (TypeError, RecursionError) as error:
            raise DataError(f"{origin}: {error}") from error


def _rejoined(windows: list[str], following: list[str]) -> Iterator[str]:
    """The passages that LEAF's Shakespeare slid its window over: each window is the last one moved on by its `y`."""
    passage = expected = None
    for window, character in zip(windows, following, strict=True):
        if passage is None or window != expected:
            if passage is not None:
                yield passage
            passage = window
        passage += character
        expected = window[1:] + character
    if passage is not None:
        yield passage


def _words(sentence: object) -> list[str]:
    if isinstance(sentence, str):
        return words_of(sentence)
    if not isinstance(sentence, list):
        raise TypeError(f"a text is a {type(sentence).__name__}, not words")
    words = []
    for part in sentence:
        if isinstance(part, list):
            words += _words(part)
        elif not isinstance(part, str):
            raise TypeError(f"a word is a {type(part).__name__}, not text")
        elif part not in _MARKS:
            words += words_of(part)
    return words


def _users(folder: Path) -> Iterator[tuple[str | None, str, list[object], list[object], str]]:
    """`(half, user, x, y, file)` of every user; the half is `None` where LEAF has not yet split train from test."""
    for place in (folder, folder / "data"):
        if any((place / "train").glob("*.json")) and any((place / "test").glob("*.json")):
            for half in ("train", "test"):
                for path in sorted((place / half).glob("*.json")):
                    yield from ((half, *found) for found in _file(path))
            return
    paths = sorted([*folder.glob("*.json"), *(folder / "data" / "all_data").glob("*.json")])
    if not paths:
        raise DataError(f"{folder} holds no LEAF data: *.json, in the folders train and test")
    for path in paths:
        yield from ((None, *found) for found in _file(path))


def _file(path: Path) -> Iterator[tuple[str, list[object], list[object], str]]:
    try:
        content = json.loads(path.read_bytes())
        users = [(str(user), content["user_data"][user]) for user in content["users"]]
        found = [(user, data["x"], data["y"], str(path)) for user, data in users]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: not LEAF's JSON or damaged ({error!r}); make it again") from error
    if not all(isinstance(x, list) and isinstance(y, list) and len(x) == len(y) for _, x, y, _ in found):
        raise DataError(f"{path}: every user needs as many y as x")
    yield from found
