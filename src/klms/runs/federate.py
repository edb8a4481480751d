"""`klms.federate`: federated training of any torch module on any data, in one call.

>>> import klms, torch                                                                        # doctest: +SKIP
>>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))                 # doctest: +SKIP
>>> run = klms.federate(model, clients, method="fedpm-klms", rounds=20, test=(x, y))          # doctest: +SKIP
>>> run.accuracy, run.bits_per_parameter                                                      # doctest: +SKIP
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klms.engine.federation import OWN, Federation
from klms.engine.ledger import LedgerRecord
from klms.errors import InvalidArgument
from klms.methods.entry import DataSettings
from klms.methods.state import State
from klms.methods.table import RunConfig
from klms.numerics.parallel import cores
from klms.runs.execution import OnRound, Summary, execute, local_engine
from klms.runs.run_folder import RunFolder
from klms.runs.settings import check_effects, resolve

if TYPE_CHECKING:
    from torch import nn

    from klms.learning.network import Loss

BUILT_IN = frozenset({*DataSettings.model_fields, "split", "c_max", "alpha", "model", "width"})
"""Settings of the data sets and models that klms has by name."""


@dataclass(frozen=True, repr=False)
class Run(Summary):
    """A finished run: its `Summary`, the model, and one record per round."""

    config: RunConfig
    federation: Federation
    state: State
    ledger: list[LedgerRecord]

    def __repr__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.4f}"
        sent = f"{self.uplink_bytes:,} bytes up, {self.downlink_bytes:,} down"
        return f"<Run of {self.config.method}: {self.rounds} rounds{accuracy}, {sent}>"

    @property
    def accuracy(self) -> float | None:
        """Test accuracy after the last round; None without test data, or where labels are not classes."""
        return self.metrics.get("accuracy")

    def model(self) -> "nn.Module":
        """Return the trained module, of the class that was given, in evaluation mode.

        The running statistics of normalisation layers, if any, are measured now, in one pass over the clients'
        examples: in training and testing here, these layers use the statistics of each batch instead.
        """
        method = self.federation.method
        examples = [self.federation.examples(client) for client in range(self.config.clients)]
        return method.learner.module_with(method.parameters(self.state), examples)

    def save(self, folder: Path | str) -> Path:
        """Write the run as a run folder, for `klms report` to read."""
        written = RunFolder.create(Path(folder), self.config)
        written.describe(self.federation.description)
        for record in self.ledger:
            written.append(record, self.state)
        written.write_table()
        return written.path


def federate(
    model: "nn.Module",
    clients: Sequence[Any],
    *,
    method: str = "fedpm-klms",
    rounds: int = 20,
    test: Any = None,
    loss: "Loss | None" = None,
    workers: int = 1,
    folder: Path | str | None = None,
    progress: OnRound | None = None,
    **settings: object,
) -> Run:
    """Train `model` on the data of `clients` with a federated method, with real bytes between clients and server.

    Args:
        model: Any torch module. It is copied, and training starts from its parameters.
        clients: One data set per client: a pair `(x, y)` of arrays or tensors, or a torch `Dataset` of pairs or of
            dictionaries. In a dictionary, `labels` holds the labels, and the model is called with the other entries as
            keyword arguments. Inputs of dtype uint8 are images, which are scaled to [-1, 1], if they have at least two
            dimensions per example, or three in a dictionary; all other numbers keep their values.
        method: One of `klms methods`.
        rounds: Number of rounds.
        test: A data set to evaluate on; None for no evaluation.
        loss: Function of the model's output and the labels; by default the cross-entropy of the output, or of the
            `logits` in it.
        workers: Number of processes that train clients in parallel; the result does not depend on it.
        folder: Folder to which every round is written, and from which an interrupted run resumes; with more `rounds`, a
            finished run is extended.
        progress: Function that is called after every round; by default, a line per round on a terminal.
        settings: Settings of the method by name, as `klms run METHOD --help` lists them.

    Returns:
        The finished run: its accuracy and bytes, one record per round, and the trained model.

    Raises:
        InvalidArgument: A setting does not exist, has no effect, or has an invalid value.
        RunFolderError: The folder holds a run with other settings, another model or other data.

    >>> import torch                                                                          # doctest: +SKIP
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))             # doctest: +SKIP
    >>> run = federate(model, clients, method="trellis", rate=0.1, rounds=20, test=(x, y))    # doctest: +SKIP
    >>> run.accuracy, run.uplink_bytes, run.downlink_bytes                                    # doctest: +SKIP
    """
    if unused := sorted(settings.keys() & BUILT_IN):
        names = ", ".join(unused)
        raise InvalidArgument(f"klms.federate takes the model and the data themselves: {names} would have no effect")
    values = {"data": OWN, "model": OWN, "clients": len(clients), "rounds": rounds, **settings}
    config = resolve(method, given=values)
    check_effects(config, settings)
    federation = Federation.of(config, model, clients, test, loss=loss, threads=cores())
    written = None if folder is None else RunFolder.open_or_create(Path(folder), config, federation.description)
    shown = progress or (print_round if sys.stderr.isatty() else None)
    state, ledger = execute(federation, config, local_engine(workers), folder=written, progress=shown)
    summary = Summary.of(config.method, ledger)
    return Run(**vars(summary), config=config, federation=federation, state=state, ledger=ledger)


def print_round(config: RunConfig, record: LedgerRecord) -> None:
    """Print one line per round to standard error."""
    accuracy = "" if record.accuracy is None else f", accuracy {record.accuracy:.4f}"
    loss = "" if record.train_loss is None else f", training loss {record.train_loss:.4g}"
    bits = f"{record.bits_per_parameter:.4f} bits per parameter up"
    up, down = record.uplink_bytes, record.downlink_bytes
    sent = f"bytes: {up:,} up, {down:,} down, {up + down:,} total"
    print(f"{config.method}: round {record.round} of {config.rounds}{accuracy}{loss}, {bits}, {sent}", file=sys.stderr)
