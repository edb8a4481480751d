"""Commands that are stopped: their exit codes, and what they leave behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.small_data import write_mnist


@pytest.fixture(scope="module")
def mnist(tmp_path_factory) -> Path:
    return write_mnist(tmp_path_factory.mktemp("mnist"))


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def accept_interrupts() -> None:
    """Undo that a background job of a shell starts with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("when", ["loading", "training"])
def test_a_stopped_run_ends_its_workers_and_says_how_to_resume(mnist, tmp_path, number, code, when):
    """Like Ctrl-C on a terminal, which every process of the group gets; SIGTERM goes to the command alone."""
    out = tmp_path / "run"
    settings = ["--width", "0.2", "--rounds", "500", "--data-dir", str(mnist), "--out", str(out), "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "klms", "run", "fedavg", *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=accept_interrupts,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        workers = children(process.pid)
        if len(workers) >= 3 and (when == "loading" or (out / "checkpoint.npz").exists()):  # two, and a tracker
            break
        time.sleep(0.02)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    written = process.communicate(timeout=60)[0].decode()
    assert process.returncode == code, written
    deadline = time.monotonic() + 30  # the tracker of semaphores ends a moment after the others
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [worker for worker in workers if alive(worker)]
    assert f"stopped; resume with: klms run --resume {out}" in written
    assert "Traceback" not in written
    assert "leaked" not in written
