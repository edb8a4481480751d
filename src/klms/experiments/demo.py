"""`klms demo`: FedAvg, FedPM and FedPM-KLMS on real MNIST at equal rounds."""

from pathlib import Path

from klms.experiments import run as running
from klms.experiments.run import Progress, Summary
from klms.experiments.run_folder import CONFIG, RunFolder
from klms.experiments.settings import resolve

METHODS = ("fedavg", "fedpm", "fedpm-klms")


def run(out: Path, *, rounds: int, workers: int, progress: Progress | None) -> list[Summary]:
    """The three runs, in folders of their own; what is there already is gone on with, or taken as it is."""
    summaries = []
    for method in METHODS:
        config = resolve(method, profile="small", given={"rounds": rounds, "evaluate_every": 2})
        folder = out / f"{method}-{rounds}"
        summaries.append(running.start_or_resume(config, folder, workers=workers, progress=progress))
    return summaries


def draw(out: Path) -> Path | None:
    """Accuracy against megabytes sent, as a PNG; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for folder in sorted(path.parent for path in out.glob(f"*/{CONFIG}")):
        sent, points = 0, []
        for record in RunFolder(folder).records():
            sent += int(str(record["uplink_bytes"]))
            if "accuracy" in record:
                points.append((sent / 1e6, float(str(record["accuracy"]))))
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=folder.name.rpartition("-")[0])
    axes.set_xscale("log")
    axes.set_xlabel("megabytes sent by all clients")
    axes.set_ylabel("test accuracy")
    axes.grid(alpha=0.3)
    axes.legend()
    picture = out / "demo.png"
    figure.savefig(picture, dpi=150)
    return picture
