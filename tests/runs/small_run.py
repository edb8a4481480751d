"""A run that takes a fraction of a second, in a process that can be killed."""

from pathlib import Path

import numpy as np
import torch

from klms.engine.ledger import LedgerRecord
from klms.runs.execution import OnRound
from klms.runs.federate import Run, federate
from klms.runs.run_folder import CHECKPOINT, RunFolder

ROUNDS = 6


def run(folder: Path, rounds: int = ROUNDS, progress: OnRound | None = None) -> Run:
    """Run it in this folder, from wherever it stopped."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(12, 6)).astype(np.float32), rng.integers(0, 3, 12)) for _ in range(3)]
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    given = {"epochs": 1, "batch": 12, "bits": 4, "target": 4.0, "evaluate_every": 2}
    given |= {"rounds": rounds, "folder": folder, "progress": progress}
    return federate(model, clients, method="fedpm-klms", test=clients[0], **given)


def run_quietly(folder: Path) -> None:
    """The same, for a child process."""
    torch.set_num_threads(1)
    run(folder)


def result(folder: Path) -> tuple[list[LedgerRecord], bytes]:
    """What a run leaves: its ledger without times, which depend on the machine, and the bytes of its checkpoint."""
    records = [record.model_copy(update={"seconds": {}}) for record in RunFolder(folder).records()]
    return records, (folder / CHECKPOINT).read_bytes()
