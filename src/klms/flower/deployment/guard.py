"""Ends the processes of a deployment whose owner is gone, even if the owner was killed with SIGKILL.

Every process of a deployment carries a mark in its environment, which its children inherit. So they are found however
they were started: Flower puts some of them into sessions of their own, where neither the process group nor, once their
parent has ended, the parent's id leads to them. Run as a script, this file needs the standard library only.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "KLMS_DEPLOYMENT"
PROCESSES = Path("/proc")


def marked(mark: str) -> list[int]:
    """The living processes whose mark begins with this one; none where there is no /proc, as on macOS."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid in _others() if any(entry.startswith(wanted) for entry in _entries(pid, "environ"))]


def runs(pid: int, program: str) -> bool:
    """True if the process runs that program, by itself or by an interpreter."""
    return any(Path(os.fsdecode(word)).name == program for word in _entries(pid, "cmdline")[:2])


def send(mark: str, number: signal.Signals) -> None:
    """A signal to all that carry the mark."""
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill(mark: str, patience: float = 5.0) -> None:
    """SIGKILL, and again as long as there are any: one may have been starting another."""
    deadline = time.monotonic() + patience
    while marked(mark) and time.monotonic() < deadline:
        send(mark, signal.SIGKILL)
        time.sleep(0.02)


def _others() -> list[int]:
    return [int(entry.name) for entry in PROCESSES.glob("[0-9]*") if int(entry.name) != os.getpid()]


def _entries(pid: int, file: str) -> list[bytes]:
    """The words of a file of /proc; none for a process that has ended, or is another user's."""
    try:
        return (PROCESSES / str(pid) / file).read_bytes().split(b"\0")
    except OSError:
        return []


if __name__ == "__main__":
    sys.stdin.buffer.read()  # comes to its end when the owner closes the pipe, or dies
    kill(sys.argv[1])
