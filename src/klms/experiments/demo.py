"""`klms demo`: FedAvg, the dense scheme and FedPM-KLMS on real MNIST with the same number of rounds."""

from dataclasses import replace
from pathlib import Path

from klms.engine.federation import Federation
from klms.errors import MissingExtra
from klms.methods.table import RunConfig
from klms.runs import execution
from klms.runs.execution import Progress, Summary
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


def run(config: RunConfig, folder: Path | str, *, workers: int, progress: Progress) -> Summary:
    """Run one of them; a complete run is kept and an interrupted one is resumed. Its accuracy is on all test images."""
    summary = execution.start_or_resume(config, folder, workers=workers, progress=progress)
    state, federation = RunFolder(folder).state(), Federation.create(config.model_copy(update={"test_images": 0}))
    assert state is not None
    assert federation.test is not None
    method = federation.method
    predictions = method.learner.predict(method.parameters(state), federation.test)
    return replace(summary, metrics=method.learner.metrics(predictions, federation.test))


def draw(out: Path | str, rounds: int) -> Path:
    """Draw the accuracy of the runs against the megabytes that were sent up and down."""
    out = Path(out)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra.told("the picture needs matplotlib", "plots") from error
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for method in METHODS:
        sent, points = 0, []
        for record in RunFolder(out / f"{method}-{rounds}").records():
            sent += record.uplink_bytes + record.downlink_bytes
            if record.accuracy is not None:
                points.append((sent / 1e6, record.accuracy))
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=method)
    axes.set(xscale="log", xlabel="megabytes up and down, all clients", ylabel="test accuracy")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out / "demo.png", dpi=150)
    return out / "demo.png"
