"""Ends the processes of a deployment whose owner is gone, even if the owner was killed.

Every process of a deployment carries a mark in its environment, which its children inherit. The mark finds them however
they were started: Flower starts some of them in sessions of their own, out of reach of the process group and, once
their parent has ended, of the parent's id. This file runs as a script and needs only the standard library.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "KLMS_DEPLOYMENT"
PROCESSES = Path("/proc")
PATIENCE = 5.0


def marked(mark: str) -> list[int]:
    """Return the living processes whose mark begins with `mark`; none on systems without /proc, such as macOS."""
    wanted = f"{MARK}={mark}".encode()
    others = {int(entry.name) for entry in PROCESSES.glob("[0-9]*")} - {os.getpid()}
    return [pid for pid in others if any(entry.startswith(wanted) for entry in _entries(pid, "environ"))]


def runs(pid: int, program: str) -> bool:
    """Return True if the process runs that program, directly or with an interpreter."""
    return any(Path(os.fsdecode(word)).name == program for word in _entries(pid, "cmdline")[:2])


def send(mark: str, number: signal.Signals) -> None:
    """Send a signal to all processes with the mark."""
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill(mark: str) -> None:
    """Kill all processes with the mark, repeatedly because one of them may have been starting another."""
    deadline = time.monotonic() + PATIENCE
    while marked(mark) and time.monotonic() < deadline:
        send(mark, signal.SIGKILL)
        time.sleep(0.02)


def _entries(pid: int, file: str) -> list[bytes]:
    """Return the entries of a file in /proc; none for a process that has ended or belongs to another user."""
    try:
        return (PROCESSES / str(pid) / file).read_bytes().split(b"\0")
    except OSError:
        return []


if __name__ == "__main__":
    sys.stdin.buffer.read()  # returns when the owner closes the pipe or dies
    kill(sys.argv[1])
