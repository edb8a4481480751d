"""Shared by all tests."""

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.skipped import summary_of_skipped

SOURCE = Path(__file__).parents[1] / "src" / "klms"
COMPILED = ("numerics", "codec", "compressors")
"""Packages with kernels; a change elsewhere does not affect them."""

# Compiling a kernel takes seconds, once: no deadline for a single example.
settings.register_profile("klms", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("klms")


def pytest_configure(config: pytest.Config) -> None:
    """Drop compiled kernels that are older than any source: Numba does not see a change of a callee in another file.

    The processes of pytest-xdist start after this one has done it; they leave alone what the others are using.
    """
    if hasattr(config, "workerinput"):
        return
    newest = max(path.stat().st_mtime for package in COMPILED for path in (SOURCE / package).rglob("*.py"))
    compiled = list(SOURCE.rglob("__pycache__/*.nb[ci]"))
    if any(path.stat().st_mtime < newest for path in compiled):
        for path in compiled:
            path.unlink(missing_ok=True)


def pytest_collection_finish() -> None:
    """Take what all libraries have created out of garbage collection: Flower collects after every array."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped and how to run it, after everything else that a user reads."""
    lines = summary_of_skipped(terminalreporter.stats.get("skipped", []))
    if lines:
        terminalreporter.section("not tested", bold=True)
        for line in lines:
            terminalreporter.write_line(line)
