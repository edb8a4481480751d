"""Processes that tests have started."""

from pathlib import Path

import pytest

from tests.support.waiting import wait_until

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux: it looks into /proc")


def working_in(folder: Path) -> list[int]:
    """Return the living processes whose working folder is this folder or inside it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if entry.readlink().is_relative_to(folder.resolve()):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def assert_none_is_left_in(folder: Path) -> None:
    """Wait for the last: a process that was killed may take a moment to leave the table of processes."""
    wait_until(lambda: not working_in(folder))
