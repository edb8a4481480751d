"""What may lie where a file should be: a reader must neither wait for it nor take it into memory."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 20.0
"""Far more than any reader needs on a busy machine; one that waits for a pipe would wait forever."""


def named_pipe(path: Path) -> None:
    os.mkfifo(path)


def endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(30 * 10**9)


ODD: dict[str, Callable[[Path], None]] = {
    "a named pipe": named_pipe,
    "a device": endless_device,
    "a folder": folder,
    "a socket": listening,
    "it has 30,000,000,000 bytes": sparse,
}
"""How to make each of them, by what an error says of it."""


def replace(path: Path, kind: str) -> None:
    """Put something of this kind in the place of a file."""
    path.unlink(missing_ok=True)
    ODD[kind](path)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Fail instead of waiting forever."""

    def stop(number: int, frame: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
