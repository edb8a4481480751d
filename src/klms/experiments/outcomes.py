"""Results files of runs that have names: what an earlier command left out is run, and the file written after each."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from klms import files

_LARGEST = 1 << 25


class NamedRun(Protocol):
    """A run whose `str` is its name in the results file."""

    def outcome(self) -> dict[str, Any]:
        """Run it."""


R = TypeVar("R", bound=NamedRun)


def run_missing(
    experiment: str, wanted: Sequence[R], path: Path, report: Callable[[R, dict[str, Any]], None]
) -> dict[str, Any]:
    """Run what the results file lacks, write the file after every run, and return what it holds."""
    results = read(experiment, path)
    for one in wanted:
        if str(one) in results["runs"]:
            continue
        results["runs"][str(one)] = one.outcome()
        files.replace(path, (json.dumps(results, indent=1) + "\n").encode())
        report(one, results["runs"][str(one)])
    return results


def read(experiment: str, path: Path) -> dict[str, Any]:
    """Return the results file, or an empty one."""
    if not path.exists():
        return {"experiment": experiment, "runs": {}}
    found: dict[str, Any] = json.loads(files.read(path, _LARGEST))
    return found
