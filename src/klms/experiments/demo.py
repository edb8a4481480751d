"""`klms demo`: FedAvg, the dense scheme and FedPM-KLMS on real MNIST with the same number of rounds."""

from dataclasses import replace
from pathlib import Path

from klms.engine.federation import Federation
from klms.methods.table import RunConfig
from klms.runs import execution
from klms.runs.execution import OnRound, Summary
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve

METHODS: dict[str, dict[str, object]] = {
    "fedavg": {},
    "trellis": {"rate": 0.1, "downlink": "coded", "down_rate": 0.1},
    "fedpm-klms": {},
}
"""The methods with their settings beyond those of the profile `small`."""


def configs(out: Path | str, rounds: int) -> dict[Path, RunConfig]:
    """Return the runs by folder. While they train, they are evaluated on a part of the test images."""
    common: dict[str, object] = {"rounds": rounds, "evaluate_every": 2, "test_images": 1000}
    return {
        Path(out) / f"{method}-{rounds}": resolve(method, profile="small", given=common | own)
        for method, own in METHODS.items()
    }


def run(config: RunConfig, folder: Path | str, *, workers: int, progress: OnRound) -> Summary:
    """Run one configuration; a complete run is kept and an interrupted one resumed. Accuracy counts all test images."""
    summary = execution.start_or_resume(config, folder, workers=workers, progress=progress)
    state = RunFolder(folder).state()
    federation = Federation.create(config.model_copy(update={"test_images": 0}))
    assert state is not None
    assert federation.test is not None
    method = federation.method
    predictions = method.learner.predict(method.parameters(state), federation.test)
    return replace(summary, metrics=method.learner.metrics(predictions, federation.test))
