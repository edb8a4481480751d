"""Digests inside the files of a run folder, so that damage is found and never taken for data.

Every file carries its own digest, which is therefore written in the same moment as what it describes: a settings file
in its first line, a JSON object in its last member, a checkpoint in the comment of its archive, where NumPy does not
look. All but the first are keyed with the digest of the settings, so that a file of another run does not fit either;
only the number of rounds has no part in that, because a run may be extended.
Folders of releases before digests have none; `required` says whether that is acceptable.
"""

import hashlib
import io
import re
from dataclasses import dataclass
from typing import IO

from klms.errors import RunFolderError

_SETTINGS = re.compile(r"# blake2b: ([0-9a-f]{64})\n")
_ROUNDS = re.compile(r"^rounds = .*\n", re.MULTILINE)
_MEMBER = re.compile(r', "check": "([0-9a-f]{32})"}\Z')
_COMMENT = b"klms blake2b: "
_COMMENT_LENGTH = len(_COMMENT) + 64
_PIECE = 1 << 20  # bytes that are hashed at a time, so that memory does not grow with the archive


@dataclass(frozen=True)
class Seal:
    """What the digests of one run folder are keyed with."""

    key: bytes

    @classmethod
    def of(cls, settings: str) -> "Seal":
        """Return the seal of a folder with these settings, as text and without their own digest."""
        return cls(hashlib.blake2b(_ROUNDS.sub("", settings).encode(), digest_size=32).digest())

    def seal_object(self, text: str) -> str:
        """Return a JSON object that is not empty with one more member, the digest of the text without it."""
        return f'{text[:-1]}, "check": "{self._digest(text.encode(), 16)}"}}'

    def open_object(self, text: str, *, required: bool) -> str:
        """Undo `seal_object`; raise a `RunFolderError` if the digest does not match, or is missing but `required`."""
        found = _MEMBER.search(text)
        if found is None:
            if required:
                raise RunFolderError("it has no digest")
            return text
        content = text[: found.start()] + "}"
        if self._digest(content.encode(errors="replace"), 16) != found[1]:
            raise RunFolderError("its digest does not match")
        return content

    def seal_archive(self, data: bytes) -> bytes:
        """Return a ZIP archive without a comment with one: the digest of everything before it."""
        # The last two bytes of an archive are the length of its comment.
        body = data[:-2] + _COMMENT_LENGTH.to_bytes(2, "little") + _COMMENT
        return body + self._digest(body, 32).encode()

    def check_archive(self, file: IO[bytes], *, required: bool) -> None:
        """Raise a `RunFolderError` if the digest of an archive does not match, or is missing but `required`."""
        length = file.seek(0, io.SEEK_END)
        file.seek(max(0, length - _COMMENT_LENGTH))
        comment = file.read(_COMMENT_LENGTH)
        if not comment.startswith(_COMMENT):
            if required:
                raise RunFolderError("it has no digest")
            return
        digest = hashlib.blake2b(digest_size=32, key=self.key)
        left = length - 64
        file.seek(0)
        while part := file.read(min(left, _PIECE)):
            digest.update(part)
            left -= len(part)
        if digest.hexdigest().encode() != comment[-64:]:
            raise RunFolderError("its digest does not match")

    def _digest(self, data: bytes, size: int) -> str:
        return hashlib.blake2b(data, digest_size=size, key=self.key).hexdigest()


def seal_settings(settings: str) -> str:
    """Return settings with their digest in the first line."""
    return f"# blake2b: {_digest_of(settings)}\n{settings}"


def open_settings(text: str) -> tuple[str, bool]:
    """Return settings without their digest, and whether they had one; raise a `RunFolderError` if it does not match."""
    found = _SETTINGS.match(text)
    if found is None:
        return text, False
    settings = text[found.end() :]
    if _digest_of(settings) != found[1]:
        raise RunFolderError("the digest does not match: the file was damaged or edited")
    return settings, True


def _digest_of(settings: str) -> str:
    return hashlib.blake2b(settings.encode(), digest_size=32).hexdigest()
