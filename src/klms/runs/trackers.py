"""Experiment trackers: TensorBoard, Weights & Biases and MLflow, imported only if they are asked for.

A tracker receives the numbers of every round (`seconds/train` for nested ones). The ledger stays the record of the run;
a resumed run logs the rounds that it adds.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from klms.engine.ledger import LedgerRecord
from klms.errors import MissingExtra
from klms.methods.table import RunConfig
from klms.runs.execution import Progress
from klms.runs.settings import check_name


class Tracker(Protocol):
    """A service or a program that shows a run."""

    def log(self, round_: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in `RUN/tensorboard`."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._writer = _module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("config", config.model_dump_json())

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round_)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of the project `klms`; settings such as WANDB_MODE=offline apply."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._run = _module("wandb").init(
            project="klms",
            name=folder.name,
            id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16],  # so that a resumed run is continued
            dir=str(folder),
            config=config.model_dump(mode="json"),
            resume="allow",
        )

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=round_)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of the experiment `klms` on the server that MLFLOW_TRACKING_URI names."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._mlflow = _module("mlflow")
        self._mlflow.set_experiment("klms")
        self._mlflow.start_run(run_name=folder.name)
        self._mlflow.log_params(config.model_dump(mode="json"))

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(numbers), step=round_)

    def close(self) -> None:
        self._mlflow.end_run()


_Make = Callable[[Path, RunConfig], Tracker]
TRACKERS: dict[str, _Make] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


@contextmanager
def tracked(names: Sequence[str], folder: Path, config: RunConfig, progress: Progress) -> Iterator[Progress]:
    """Open the named trackers, and yield a progress function that feeds them before it calls `progress`."""
    for name in names:
        check_name("tracker", name, TRACKERS)
    with ExitStack() as stack:
        trackers = [stack.enter_context(closing(TRACKERS[name](folder, config))) for name in names]

        def log_and_report(config: RunConfig, record: LedgerRecord) -> None:
            for tracker in trackers:
                tracker.log(record.round, record.numbers())
            progress(config, record)

        yield log_and_report


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        package = name.rpartition(".")[2]
        raise MissingExtra(f"this tracker needs {package}: pip install {package}") from error
