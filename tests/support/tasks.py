"""Tasks for worker processes. It imports little, so that workers start fast."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_kept: list[object] = []


class Odd(Exception):
    """An exception that can be pickled but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def call(item: Sequence[Any]) -> object:
    """Call a function with arguments, and return its result with the process that was here."""
    function, *args = item
    return function(*args), os.getpid()


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def write_and_wait(file: Path) -> None:
    """Say that this process is at work, and work for ever."""
    file.touch()
    time.sleep(3600)


def keep(value: object) -> None:
    _kept.append(value)


def kept(_: object) -> list[object]:
    return _kept


def fail(error: Exception) -> None:
    raise error


def fail_oddly(_: object) -> None:
    raise Odd("odd", "exception")


def make_function(_: object) -> Callable[[], None]:
    return lambda: None
