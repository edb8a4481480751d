"""Data for the experiments of these tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from klms.experiments import grid
from tests.support.small_data import write_mnist


@pytest.fixture(scope="session")
def mnist(tmp_path_factory) -> Path:
    return write_mnist(tmp_path_factory.mktemp("mnist"))


@pytest.fixture(scope="session", autouse=True)
def instructions() -> Iterator[dict[str, str]]:
    """Leave torch's instructions alone: it chooses once per process, and other tests compare what processes compute."""
    with pytest.MonkeyPatch.context() as patch:
        usual = grid.INSTRUCTIONS
        patch.setattr(grid, "INSTRUCTIONS", {})
        yield usual
