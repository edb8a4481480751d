"""`klms demo`: FedAvg, FedPM and FedPM-KLMS on real MNIST with the same number of rounds."""

from functools import partial
from pathlib import Path

from klms.engine.ledger import total_bytes
from klms.errors import MissingExtra
from klms.runs import execution
from klms.runs.execution import Progress, Summary
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve

METHODS = ("fedavg", "fedpm", "fedpm-klms")


def run(out: Path, *, rounds: int, workers: int, progress: Progress | None) -> list[Summary]:
    """Train the three methods in folders of their own; complete runs are kept and interrupted ones are resumed."""
    given = {"rounds": rounds, "evaluate_every": 2}
    configs = {out / f"{method}-{rounds}": resolve(method, profile="small", given=given) for method in METHODS}
    start = partial(execution.start_or_resume, workers=workers, progress=progress)
    return [start(config, folder) for folder, config in configs.items()]


def draw(out: Path, rounds: int) -> Path:
    """Draw the accuracy of the three runs against the megabytes that were sent up and down."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("the picture needs matplotlib: pip install 'klms[plots]'") from error
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for method in METHODS:
        sent, points = 0, []
        records = list(RunFolder(out / f"{method}-{rounds}").records())
        if total_bytes(records) is None:  # a run of a release that did not count the downlink
            continue
        for record in records:
            sent += record.uplink_bytes + record.downlink_bytes
            if record.accuracy is not None:
                points.append((sent / 1e6, record.accuracy))
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=method)
    axes.set(xscale="log", xlabel="megabytes up and down, all clients", ylabel="test accuracy")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out / "demo.png", dpi=150)
    return out / "demo.png"
