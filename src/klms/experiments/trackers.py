"""Experiment trackers as callbacks: TensorBoard, Weights & Biases, MLflow. What is not installed is not imported.

A tracker sees every round's ledger line, flattened to numbers (`seconds/train`). The ledger itself stays the record; a
resumed run logs the rounds that it adds.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from klms.experiments.run import Progress
from klms.experiments.settings import SettingsError, check_name
from klms.methods.config import RunConfig


class Tracker(Protocol):
    """Somewhere to look at a run."""

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """A round is done."""
        ...

    def close(self) -> None:
        """The run is done, or was stopped."""
        ...


def scalars(record: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a ledger line.

    >>> scalars({"round": 3, "accuracy": 0.5, "clients": [1, 2], "seconds": {"train": 2.0}})
    {'accuracy': 0.5, 'seconds/train': 2.0}
    """
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{inner}": float(number) for inner, number in value.items()}
        elif isinstance(value, (int, float)) and name != "round":
            found[name] = float(value)
    return found


class TensorBoard:
    """Event files under `RUN/tensorboard`."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        writer = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(str(folder / "tensorboard"))
        self._writer.add_text("config", config.model_dump_json())

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round_)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of the project `klms`; its own settings (WANDB_MODE=offline and the like) hold."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        wandb = _module("wandb", "wandb")
        self._run = wandb.init(
            project="klms",
            name=folder.name,
            id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16],  # a resumed run goes on in its own
            dir=str(folder),
            config=config.model_dump(mode="json"),
            resume="allow",
        )

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=round_)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of the experiment `klms`, where MLFLOW_TRACKING_URI says."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._mlflow = _module("mlflow", "mlflow")
        self._mlflow.set_experiment("klms")
        self._mlflow.start_run(run_name=folder.name)
        self._mlflow.log_params(config.model_dump(mode="json"))

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(numbers), step=round_)

    def close(self) -> None:
        self._mlflow.end_run()


TRACKERS: dict[str, Callable[[Path, RunConfig], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


@contextmanager
def tracked(names: Sequence[str], folder: Path, config: RunConfig, progress: Progress) -> Iterator[Progress]:
    """`progress`, with the named trackers behind it."""
    for name in names:
        check_name("tracker", name, TRACKERS)
    with ExitStack() as stack:
        trackers = []
        for name in names:
            tracker = TRACKERS[name](folder, config)
            stack.callback(tracker.close)
            trackers.append(tracker)

        def both(config: RunConfig, record: Mapping[str, object]) -> None:
            for tracker in trackers:
                tracker.log(int(str(record["round"])), scalars(record))
            progress(config, record)

        yield both


def _module(name: str, package: str) -> ModuleType | Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise SettingsError(f"this tracker needs {package}: pip install {package}") from error
