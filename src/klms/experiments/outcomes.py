"""Results files of named runs: runs that the file lacks are carried out, and the file is written after each of them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from klms import files

_LARGEST = 1 << 25


class NamedRun(Protocol):
    """A run whose `str` is its name in the results file."""

    def outcome(self) -> dict[str, Any]:
        """Carry out the run, and return its results."""


R = TypeVar("R", bound=NamedRun)


def run_missing(
    experiment: str, wanted: Sequence[R], path: Path, report: Callable[[R, dict[str, Any]], None]
) -> dict[str, Any]:
    """Carry out the runs that the results file lacks, write the file after each of them, and return its content."""
    results = read(experiment, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for one in wanted:
        if str(one) in results["runs"]:
            continue
        results["runs"][str(one)] = one.outcome()
        files.replace(path, (json.dumps(results, indent=1) + "\n").encode())
        report(one, results["runs"][str(one)])
    return results


def read(experiment: str, path: Path) -> dict[str, Any]:
    """Return the content of the results file, without runs if there is no file."""
    if not path.exists():
        return {"experiment": experiment, "runs": {}}
    found: dict[str, Any] = json.loads(files.read(path, _LARGEST))
    return found
