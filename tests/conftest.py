"""Shared by all tests."""

import gc
import secrets
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.support.skipped import summary_of_skipped

SOURCE = Path(__file__).parents[1] / "src" / "klms"
COMPILED = ("numerics", "codec", "compressors")
"""Packages with kernels; a change elsewhere does not affect them."""

# Compiling a kernel takes seconds, once: no deadline for a single example. Examples are the same in every run; with
# `pytest --hypothesis-profile explore` they are not.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("klms", settings.get_profile("explore"), derandomize=True)
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


@pytest.fixture(autouse=True)
def fixed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what the operating system would draw from a fixed seed, so that no test is a matter of chance."""
    source, seeded = np.random.default_rng(0), np.random.default_rng

    def default_rng(seed: object = None) -> np.random.Generator:
        return seeded(source.integers(2**63) if seed is None else seed)

    monkeypatch.setattr(np.random, "default_rng", default_rng)
    monkeypatch.setattr(secrets, "randbits", lambda bits: int.from_bytes(source.bytes(64)) % 2**bits)
    monkeypatch.setattr(secrets, "randbelow", lambda limit: int.from_bytes(source.bytes(64)) % limit)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped and how to run it, after everything else that a user reads."""
    lines = summary_of_skipped(terminalreporter.stats.get("skipped", []))
    if lines:
        terminalreporter.section("not tested", bold=True)
        for line in lines:
            terminalreporter.write_line(line)
