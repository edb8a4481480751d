"""Processes that write a log, end together with all their children, and do not outlive their owner.

Every process carries a mark in its environment, which its children inherit. The mark identifies them however they were
started: some are in sessions of their own, and can be found neither by the process group nor, once their parent has
ended, by the parent's id. The guard runs this file as a script, so it needs only the standard library.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

MARK = "KLMS_DEPLOYMENT"
PROCESSES = Path("/proc")
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
PATIENCE = 10.0
"""Seconds that a process has to end by itself before it is killed."""


class Process:
    """A running command that appends its output to `log.txt` in its working folder."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], mark: str) -> None:
        self._log_file = folder / "log.txt"
        self._mark = mark
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**environment, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C interrupts the owner only, which then ends this process
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def terminate(self) -> None:
        """Ask the process to end; `stop` must follow."""
        self._process.terminate()

    def stop(self) -> None:
        """Ask the process to end; kill it if it does not end, and then kill its remaining children."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its children, and wait until they are gone."""
        if self.running:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        kill_marked(self._mark)

    def log(self) -> str:
        """Return what the process has written, without colours."""
        return _COLOURS.sub("", self._log_file.read_text(errors="replace"))


class Guard:
    """A process that kills all processes with the mark once its parent has ended, even if the parent was killed."""

    def __init__(self, mark: str) -> None:
        command = [sys.executable, "-I", "-S", __file__, mark]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
        )

    def close(self) -> None:
        """Kill the marked processes now, and end the guard."""
        self._process.communicate()


def marked(mark: str) -> list[int]:
    """Return the living processes whose mark begins with `mark`; an empty list without /proc, as on macOS."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in PROCESSES.glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if any(line.startswith(wanted) for line in entry.read_bytes().split(b"\0")):
                found.append(int(entry.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def kill_marked(mark: str) -> None:
    """Kill all processes with the mark, repeatedly, because one of them may be starting another."""
    deadline = time.monotonic() + PATIENCE / 2
    while (left := marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # returns when the owner closes the pipe or dies
    kill_marked(sys.argv[1])
