"""Digests inside the text files of a run folder, so that damage is detected and never mistaken for data.

Every file carries its own digest, which is therefore written together with the content that it covers: settings carry
it in their first line, a JSON object in its last member. The digests of objects are keyed with a digest of the
settings, so that a file of another run does not match either. That key leaves out the number of rounds, because a run
may be extended.
"""

import hashlib
import re

from klms.errors import RunFolderError

_SETTINGS = re.compile(r"# blake2b: ([0-9a-f]{64})\n")
_ROUNDS = re.compile(r"^rounds = .*\n", re.MULTILINE)
_MEMBER = re.compile(r', "check": "([0-9a-f]{32})"}\Z')


def key_of(settings: str) -> bytes:
    """Return the key for the digests of a run folder, given its settings without their own digest."""
    return hashlib.blake2b(_ROUNDS.sub("", settings).encode(), digest_size=32).digest()


def with_digest(text: str, key: bytes) -> str:
    """Return a non-empty JSON object with one more member: the digest of the text without that member."""
    return f'{text[:-1]}, "check": "{_digest(text, 16, key)}"}}'


def without_digest(text: str, key: bytes) -> str:
    """Undo `with_digest`; raise a `RunFolderError` if the digest is missing or does not match."""
    found = _MEMBER.search(text)
    if found is None:
        raise RunFolderError("it has no digest")
    content = text[: found.start()] + "}"
    if _digest(content, 16, key) != found[1]:
        raise RunFolderError("its digest does not match")
    return content


def settings_with_digest(settings: str) -> str:
    """Return settings with their digest in the first line."""
    return f"# blake2b: {_digest(settings, 32)}\n{settings}"


def settings_without_digest(text: str) -> str:
    """Undo `settings_with_digest`; raise a `RunFolderError` if the digest is missing or does not match."""
    found = _SETTINGS.match(text)
    settings = text[found.end() :] if found else ""
    if found is None or _digest(settings, 32) != found[1]:
        raise RunFolderError("the digest does not match: the file was damaged or edited")
    return settings


def _digest(text: str, size: int, key: bytes = b"") -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=size, key=key).hexdigest()
