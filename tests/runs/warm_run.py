"""Imported by a process that others are forked from: they need not load torch and compiled kernels again."""

import tempfile
from pathlib import Path

from tests.runs.small_run import run_quietly

with tempfile.TemporaryDirectory() as folder:
    run_quietly(Path(folder) / "run")
