"""Files of run folders and data sets: read without waiting and within bounds, written completely or not at all.

A folder may come from an untrusted source. It may hold a named pipe, on which a reader would wait forever; a link to an
endless device; or a file of many gigabytes that takes no space on disk. All files are therefore opened here, and
everything is refused except regular files up to a size that the reader states. A link to a regular file may be read,
because large files are often kept on another disk. Nothing is written through a link, because a link could lead to any
file of the user.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from klms.errors import RunFolderError, UnreadableFile

# Windows has no named pipes in folders and no such flags, except the last one, which it needs to read bytes.
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_TOKEN = 8  # random bytes in the name of a file that is being written
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


@contextmanager
def opened(path: Path, largest: int) -> Iterator[IO[bytes]]:
    """Open a regular file of at most `largest` bytes; an `UnreadableFile` says what is wrong with it."""
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            reason = f"it has {size:,} bytes, and at most {largest:,} are read: replace it or remove it"
            raise UnreadableFile(errno.EFBIG, reason, str(path))
        yield file


def read(path: Path, largest: int) -> bytes:
    """Return the content of a regular file, as far as it had been written when it was opened."""
    with opened(path, largest) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def open_lock(path: Path) -> IO[bytes]:
    """Open a file to lock it; it is created if it is missing."""
    return os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT | _NO_LINK), "wb")


def replace(path: Path, content: bytes) -> None:
    """Write a file completely or not at all, whatever happens in between."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of `path` once it is complete; after an error, nothing has changed.

    Until then, the file has a random name, so that it does not replace any other file.
    """
    temporary = path.with_name(f"klms-{secrets.token_hex(_TOKEN)}.new")
    try:
        with os.fdopen(_open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # the folder is read-only
            temporary.unlink(missing_ok=True)  # a partial file would take the last space of a full disk
        if isinstance(error, OSError) and not isinstance(error, UnreadableFile):
            raise _cannot_write(path, error) from error
        raise


def remove_partial(folder: Path) -> None:
    """Remove the partial files that writers left in a folder when they were killed.

    No other process may be writing there.
    """
    for left in folder.glob(f"klms-{'[0-9a-f]' * 2 * _TOKEN}.new"):
        with suppress(OSError):  # the folder is read-only, or this is a folder
            left.unlink()


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file. A failure in the middle leaves the earlier content unchanged."""
    try:
        _write(path, os.O_APPEND, content)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _open(path: Path, flags: int) -> int:
    """Return the descriptor of a regular file; an `UnreadableFile` names any other kind."""
    try:
        descriptor = os.open(path, flags | _WITHOUT_WAITING, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _not_a_file("a socket, or a pipe that nobody reads", path) from error
        if error.errno == errno.ELOOP and flags & _NO_LINK:
            raise _not_a_file("a link", path) from error
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise _not_a_file(_KINDS.get(kind, "something else"), path)
    return descriptor


def _not_a_file(kind: str, path: Path) -> UnreadableFile:
    return UnreadableFile(errno.EINVAL, f"it is {kind}, not a regular file: replace it or remove it", str(path))


def _write(path: Path, how: int, content: bytes) -> None:
    with os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT | _NO_LINK | how), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _cannot_write(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"{path} cannot be written ({error.strerror}): what was written before is kept")
