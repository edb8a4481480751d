"""Runs with workers that are stopped at any moment: about half an hour on two cores."""

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.commands import eventually, members, send, started
from tests.support.small_data import write_mnist

COUNT = 300
LATEST = 12.0
"""Seconds after the start; a run loads for some seconds, and trains until it is stopped."""
PROMISED = 2.0


@dataclass(frozen=True)
class Stop:
    number: signal.Signals
    moment: float
    seconds: float
    code: int
    written: str
    left_behind: int

    @property
    def before_us(self) -> bool:
        """Whether Python was still starting, and none of our code was running yet."""
        return self.moment < 1 and not any(word in self.written for word in ("stopped", "klms/"))

    def complaints(self) -> list[str]:
        if self.before_us:
            return []
        found = []
        if self.code != 128 + self.number:
            found.append(f"exit code {self.code}")
        if self.seconds > PROMISED:
            found.append(f"took {self.seconds:.2f} s")
        if self.left_behind:
            found.append(f"{self.left_behind} processes left behind")
        if "stopped" not in self.written or any(word in self.written for word in ("Traceback", "Exception", "leaked")):
            found.append(f"wrote {self.written}")
        return found


def stop_one(mnist: Path, out: Path, number: signal.Signals, moment: float) -> Stop:
    settings = ["--width", "0.2", "--rounds", "500", "--data-dir", str(mnist), "--out", str(out), "--workers", "2"]
    with started("run", "fedavg", *settings) as process:
        time.sleep(moment)
        sent = time.monotonic()
        send(process, number)
        written = process.communicate(timeout=60)[0].decode()
        seconds = time.monotonic() - sent
        eventually(lambda: not members(process.pid), seconds=PROMISED)
        stop = Stop(number, moment, seconds, process.returncode, written, len(members(process.pid)))
    last = written.strip().rpartition("\n")[2]
    print(f"{number.name} {moment:6.3f} {seconds:6.3f} {stop.code} {last} {stop.complaints() or ''}", flush=True)
    return stop


@pytest.mark.soak
def test_a_run_that_is_stopped_at_any_moment_ends_within_two_seconds(tmp_path):
    mnist = write_mnist(tmp_path / "mnist")
    draw = random.Random(0)
    moments = [draw.uniform(0, LATEST) for _ in range(COUNT)]
    numbers = [signal.SIGTERM, signal.SIGINT] * (COUNT // 2)
    folders = [tmp_path / str(place) for place in range(COUNT)]
    with ThreadPoolExecutor(2) as threads:
        stops = list(threads.map(stop_one, [mnist] * COUNT, folders, numbers, moments))
    seconds = sorted(stop.seconds for stop in stops)
    print("seconds to the end, from the fastest to the slowest:", [f"{value:.2f}" for value in seconds[:: COUNT // 20]])
    print("the slowest:", f"{seconds[-1]:.2f}", "before our code ran:", sum(stop.before_us for stop in stops))
    assert not [stop.complaints() for stop in stops if stop.complaints()]
