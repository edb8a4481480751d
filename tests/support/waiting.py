"""Waiting for what other processes and threads do, without a limit that a busy machine could exceed."""

import time
from collections.abc import Callable

FOREVER = 3600
"""Seconds: only a test that hangs takes as long."""


def wait_until(done: Callable[[], object]) -> None:
    """Return once `done` is true."""
    deadline = time.monotonic() + FOREVER
    while not done():
        assert time.monotonic() < deadline, "what the test waits for does not happen"
        time.sleep(0.02)
