"""Experiment trackers: TensorBoard, Weights & Biases and MLflow, imported only if they are asked for.

A tracker receives the numbers of every round; nested numbers get names such as `seconds/train`. The ledger remains the
record of the run. A resumed run logs only the rounds that it adds.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from klms.engine.ledger import LedgerRecord
from klms.errors import MissingExtra
from klms.methods.table import RunConfig
from klms.numerics.checks import check_name
from klms.runs.execution import OnRound

Log = Callable[[int, Mapping[str, float]], None]
"""Logs the numbers of a round."""


@contextmanager
def tensorboard(folder: Path, config: RunConfig) -> Iterator[Log]:
    """Log to event files in `RUN/tensorboard`."""
    with closing(_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard"))) as writer:
        writer.add_text("config", config.model_dump_json())

        def log(number: int, numbers: Mapping[str, float]) -> None:
            for name, value in numbers.items():
                writer.add_scalar(name, value, number)

        yield log


@contextmanager
def wandb(folder: Path, config: RunConfig) -> Iterator[Log]:
    """Log to a run of the project `klms`; settings such as WANDB_MODE=offline apply."""
    run = _module("wandb").init(
        project="klms",
        name=folder.name,
        id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16],  # so that a resumed run is continued
        dir=str(folder),
        config=config.model_dump(mode="json"),
        resume="allow",
    )
    try:
        yield lambda number, numbers: run.log(dict(numbers), step=number)
    finally:
        run.finish()


@contextmanager
def mlflow(folder: Path, config: RunConfig) -> Iterator[Log]:
    """Log to a run of the experiment `klms` on the server that MLFLOW_TRACKING_URI names."""
    client = _module("mlflow")
    client.set_experiment("klms")
    client.start_run(run_name=folder.name)
    client.log_params(config.model_dump(mode="json"))
    try:
        yield lambda number, numbers: client.log_metrics(dict(numbers), step=number)
    finally:
        client.end_run()


_Open = Callable[[Path, RunConfig], AbstractContextManager[Log]]
TRACKERS: dict[str, _Open] = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}


@contextmanager
def tracked(names: Sequence[str], folder: Path | str, config: RunConfig, progress: OnRound) -> Iterator[OnRound]:
    """Open the named trackers, and yield a progress function that feeds them before it calls `progress`."""
    for name in names:
        check_name("tracker", name, TRACKERS)
    with ExitStack() as stack:
        logs = [stack.enter_context(TRACKERS[name](Path(folder), config)) for name in names]

        def log_and_report(config: RunConfig, record: LedgerRecord) -> None:
            for log in logs:
                log(record.round, record.numbers())
            progress(config, record)

        yield log_and_report


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        package = name.rpartition(".")[2]
        raise MissingExtra(f"this tracker needs {package}: pip install {package}") from error
