"""The share of coding in a round of the paper's size: LeNet, 6,000 images per client, 8 bits per block."""

from pathlib import Path
from typing import Any

from klms.engine.ledger import LedgerRecord
from klms.engine.ledger import coding_share as share_of
from klms.experiments.catalogue import comparable
from klms.experiments.tables import table
from klms.runs import execution
from klms.runs.execution import Progress
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve

SETTINGS: dict[str, dict[str, object]] = {
    "fedpm-klms": {},
    "qsgd-klms": {},
    "signsgd-klms": {},
    "sgld-klms": {"batch": 6000},  # one pass over the data of a client, like the paper's single local epoch
}


def run(runs: Path | str, workers: int, progress: Progress | None) -> dict[str, Any]:
    """Run one round of each method, and return its configuration and seconds per phase."""
    results = {}
    for method, given in SETTINGS.items():
        folder = RunFolder(Path(runs) / "share" / method)
        config = resolve(method, profile="paper", given={"model": "lenet", "rounds": 1} | given)
        execution.start_or_resume(config, folder.path, workers=workers, progress=progress)
        results[method] = {"config": comparable(folder.config()), "seconds": next(folder.records()).seconds}
    return results


def markdown(results: dict[str, Any]) -> str:
    """Return a table with one row per method."""
    lines = []
    for method, entry in results.items():
        seconds = entry["seconds"]
        share = share_of([LedgerRecord(round=1, uplink_bytes=0, bits_per_parameter=0, seconds=seconds)])
        times = (f"{seconds['train']:.1f}", f"{seconds['encode']:.2f}", f"{seconds['decode']:.2f}")
        lines.append((method, *times, f"{share:.1%}"))
    return table(("method", "training, s", "encoding, s", "decoding, s", "share of coding"), lines)
