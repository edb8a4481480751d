"""Processes that write a log and end together with all their children."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from klms.flower.deployment import guard

PATIENCE = 10.0
"""Seconds that a process has to end by itself before it is killed. Flower's processes take at most five."""


class Process:
    """A running command that appends its output to `log.txt` in its working folder."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], mark: str) -> None:
        self._log_file = folder / "log.txt"
        self._mark = mark
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**environment, guard.MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C interrupts the owner only, which then ends this process
            )

    @property
    def running(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def members(self, program: str) -> list[int]:
        """Return the ids of the process and its children, as far as they run `program`."""
        return [pid for pid in guard.marked(self._mark) if guard.runs(pid, program)]

    def terminate(self) -> None:
        """Ask the process to end; `stop` must follow."""
        if self.running:
            self._process.terminate()

    def stop(self) -> None:
        """Ask the process and then its children to end, and kill those that do not.

        Flower's children end by themselves after their parent, but notice its end only after seconds.
        """
        deadline = time.monotonic() + PATIENCE
        self.terminate()
        while self.running and time.monotonic() < deadline:
            time.sleep(0.05)
        guard.send(self._mark, signal.SIGTERM)
        while guard.marked(self._mark) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its children, and wait until they are gone."""
        if self.running:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        guard.kill(self._mark)

    def log(self) -> str:
        """Return everything that the process has written so far."""
        return self._log_file.read_text(errors="replace")


class Guard:
    """A process that waits for the end of this one and then kills all processes with the mark."""

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """Kill the marked processes now, and end the guard."""
        self._process.communicate()
