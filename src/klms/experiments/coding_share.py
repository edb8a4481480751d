"""The share of coding in the time of a round at the paper's size: LeNet, 6,000 images per client, 8 bits per block."""

from pathlib import Path
from typing import Any

from klms.experiments.catalogue import comparable
from klms.runs import execution
from klms.runs.execution import OnRound
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve

SETTINGS: dict[str, dict[str, object]] = {
    "fedpm-klms": {},
    "qsgd-klms": {},
    "signsgd-klms": {},
    "sgld-klms": {"batch": 6000},  # one pass over the data of a client, like the paper's single local epoch
}


def run(runs: Path | str, progress: OnRound | None) -> dict[str, Any]:
    """Run one round of each method, and return each method's configuration and seconds per phase."""
    results = {}
    for method, given in SETTINGS.items():
        folder = RunFolder(Path(runs) / "share" / method)
        config = resolve(method, profile="paper", given={"model": "lenet", "rounds": 1} | given)
        execution.start_or_resume(config, folder.path, progress=progress)
        results[method] = {"config": comparable(folder.config()), "seconds": next(folder.records()).seconds}
    return results
