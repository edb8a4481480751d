"""Processes with a log, which end with all their children."""

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
"""Seconds a process has to end by itself before it is killed. Flower's processes take at most five."""


class Process:
    """One command, which can be started again; its log goes on where it was."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], mark: str) -> None:
        self.command = list(command)
        self.folder = folder
        self.environment = {**environment, guard.MARK: mark}
        self.mark = mark
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """In a session of its own: a Ctrl-C is for the owner, who then ends this."""
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Started, and not yet ended."""
        return self._process is not None and self._process.poll() is None

    def members(self, program: str) -> list[int]:
        """Those of the process and its children that run this program."""
        return [pid for pid in guard.marked(self.mark) if guard.runs(pid, program)]

    def terminate(self) -> None:
        """Ask it to end; to be followed by `stop`."""
        if self._process is not None and self.running:
            self._process.terminate()

    def stop(self, patience: float = PATIENCE) -> None:
        """End it, then its children: asked first, killed if they do not.

        Flower's children end by themselves when their parent has, but take seconds to look.
        """
        deadline = time.monotonic() + patience
        self.terminate()
        while self.running and time.monotonic() < deadline:
            time.sleep(0.05)
        guard.send(self.mark, signal.SIGTERM)
        while guard.marked(self.mark) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to it and its children, and wait until they are gone."""
        if self._process is None:
            return
        if self.running:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        guard.kill(self.mark)

    @property
    def _log_file(self) -> Path:
        return self.folder / "log.txt"

    def log(self) -> str:
        """All it has written so far."""
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""


class Guard:
    """A process that waits for the end of this one, and then kills what carries the mark."""

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """Let it do its work now."""
        self._process.communicate()
