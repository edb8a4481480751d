"""Commands and scripts in processes of their own, which tests stop."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from klms.cli import app


def printed_json(*arguments: str) -> Any:
    """Return what the `klms` command prints with `--json`; the lines before it are on standard error."""
    shown = CliRunner().invoke(app, [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.output[shown.output.index("{\n") :])


def started(*arguments: str, **environment: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Start the `klms` command; nothing of it is left at the end."""
    return _started("-m", "klms", *arguments, **environment)


def started_script(
    script: str, *arguments: str, folder: Path | None = None
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Start a script, from a file in a folder if one is given: then its worker processes import it."""
    if folder is None:
        return _started("-c", script, *arguments)
    file = folder / "script.py"
    file.write_text(script)
    return _started(str(file), *arguments)


def send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send SIGINT to all processes, as Ctrl-C on a terminal does; other signals to the command alone."""
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)


def members(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session(pid) == session]


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Wait until the condition holds, or for very long, and return whether it does."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@contextmanager
def _started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start Python as the leader of a session, to which all processes belong that it starts."""
    path = os.pathsep.join([environment.pop("PYTHONPATH", ""), *sys.path])
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_accept_interrupts,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    with process:
        try:
            yield process
        finally:
            for member in members(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)


def _session(pid: int) -> int | None:
    """Return the session of a process, or None if that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[3])


def _accept_interrupts() -> None:
    """Undo that a background job of a shell starts with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
