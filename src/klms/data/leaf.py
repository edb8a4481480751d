"""LEAF's JSON: `{"users": [...], "user_data": {user: {"x": [...], "y": [...]}}}`, in `train` and `test` folders."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from klms import files
from klms.data.dataset import LARGEST_FILE, Bytes, Dataset, Integers, images, integer_labels
from klms.data.text import Corpus, Document, collect, words_of
from klms.errors import DataError

_MARKS = frozenset(("<PAD>", "<BOS>", "<EOS>", "<pad>", "<bos>", "<eos>"))


def image(name: str, folder: Path, side: int, classes: int) -> Dataset:
    """Grey images by writer (FEMNIST); each image is a flat list of `side` x `side` values in `[0, 1]`."""
    writers: dict[str, int] = {}
    halves: dict[str, list[tuple[Bytes, Integers, Integers]]] = {"train": [], "test": []}
    for half, user, x, y, origin in _users(folder):
        if half is None:
            raise DataError(f"{folder} has no train and test folders; run LEAF's preprocess.sh with -t sample")
        if x:
            labels, writer = integer_labels(y, classes, origin), writers.setdefault(user, len(writers))
            halves[half].append((_pixels(x, side, origin), labels, np.full(len(x), writer)))
    if not all(halves.values()):
        raise DataError(f"{folder} has no training images or no test images; run LEAF's preprocess.sh with -t sample")
    train, test = ([np.concatenate([part[i] for part in half]) for i in range(3)] for half in halves.values())
    return images(name, (train[0], train[1]), (test[0], test[1]), classes, (train[2], test[2]))


def _pixels(x: list[object], side: int, origin: str) -> Bytes:
    for row in x:
        # NumPy would turn the text "0.5" and the boolean true into numbers.
        if not (isinstance(row, list) and len(row) == side * side and set(map(type, row)) <= {int, float}):
            raise DataError(f"{origin}: every image must be a flat list of {side * side} numbers")
    try:
        values = np.array(x, np.float64)
    except OverflowError as error:
        raise DataError(f"{origin}: a pixel is too large for a floating-point number") from error
    if not (values.min() >= 0 and values.max() <= 1):
        raise DataError(f"{origin}: pixels must be in [0, 1], but they range from {values.min()} to {values.max()}")
    return np.rint(values * 255).astype(np.uint8).reshape(-1, 1, side, side)


def text(name: str, folder: Path) -> Corpus:
    """Text by user: each `x` is a sentence, a list of words, or a list of such lists; or LEAF's character windows.

    `y` is used only to rejoin the windows, because in all other texts the next word is found in `x`.
    """
    documents = (
        Document(user, words, half == "test" if half else None)
        for half, user, x, y, origin in _users(folder)
        for words in _documents(x, y, origin)
    )
    return collect(name, documents)


def _documents(x: list[object], y: list[object], origin: str) -> Iterator[list[str]]:
    windows = [window for window in x if isinstance(window, str)]
    following = [character for character in y if isinstance(character, str) and len(character) == 1]
    if len(windows) == len(following) == len(x):
        yield from (words_of(passage) for passage in _rejoined(windows, following))
        return
    for sentence in x:
        parts = sentence if isinstance(sentence, list) else [sentence]
        pieces = [piece for part in parts for piece in (part if isinstance(part, list) else [part])]
        strings = [piece for piece in pieces if isinstance(piece, str)]
        if len(strings) != len(pieces):
            raise DataError(f"{origin}: every text must be a string, a list of words, or a list of such lists")
        yield [word for string in strings if string not in _MARKS for word in words_of(string)]


def _rejoined(windows: list[str], following: list[str]) -> Iterator[str]:
    """Yield the passages of LEAF's Shakespeare: each window is the previous one, shifted by one character."""
    passage: list[str] = []
    expected = None
    for window, character in zip(windows, following, strict=True):
        if window != expected:
            if passage:
                yield "".join(passage)
            passage = [window]
        passage.append(character)
        expected = window[1:] + character
    yield "".join(passage)


def _users(folder: Path) -> Iterator[tuple[str | None, str, list[object], list[object], str]]:
    """Yield `(part, user, x, y, file)` for every user.

    The part is "train" or "test", or `None` where LEAF has not split the data yet.
    """
    halves: dict[str | None, list[Path]]
    for place in (folder, folder / "data"):
        halves = {half: _json_files(place / half) for half in ("train", "test")}
        if all(halves.values()):
            break
    else:
        halves = {None: sorted(_json_files(folder) + _json_files(folder / "data" / "all_data"))}
    if not any(halves.values()):
        raise DataError(f"{folder} holds no LEAF data; expected *.json files in the folders train and test")
    for half, paths in halves.items():
        for path in paths:
            yield from ((half, *found) for found in _file(path))


def _json_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if path.is_file())


def _file(path: Path) -> list[tuple[str, list[object], list[object], str]]:
    try:
        content = json.loads(files.read(path, LARGEST_FILE))
        users, data = content["users"], content["user_data"]
        # A short file that lists one user a million times would otherwise need the memory of a million users.
        if not isinstance(data, dict) or len(set(users)) != len(users):
            raise ValueError("user_data is not an object, or a user is listed twice")
        found = [(user, data[user]["x"], data[user]["y"], str(path)) for user in users]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is not LEAF's JSON or is damaged ({error!r}); create it again") from error
    if not all(isinstance(x, list) and isinstance(y, list) and len(x) == len(y) for _, x, y, _ in found):
        raise DataError(f"{path}: every user needs a list x and a list y of the same length; create it again")
    return found
