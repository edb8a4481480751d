"""How much of a round encoding and decoding take at the paper's size: LeNet, 6,000 images a client, 8 bits a block."""

from pathlib import Path

from klms.experiments import run as running
from klms.experiments.run import Progress
from klms.experiments.run_folder import RunFolder
from klms.experiments.settings import resolve

SETTINGS: dict[str, dict[str, object]] = {
    "fedpm-klms": {},
    "qsgd-klms": {},
    "signsgd-klms": {},
    "sgld-klms": {"batch": 6000},  # one pass over a client's data, as the paper's one local epoch is
}


def run(runs: Path, workers: int, progress: Progress | None) -> dict[str, object]:
    """One round of each."""
    for method, given in SETTINGS.items():
        path = runs / "share" / method
        config = resolve(method, profile="paper", given={"model": "lenet", "rounds": 1} | given)
        running.start_or_resume(config, path, workers=workers, progress=progress)
    return collect(runs)


def collect(runs: Path) -> dict[str, object]:
    """Seconds by phase of every run."""
    return {
        method: {
            "config": RunFolder(runs / "share" / method).config().model_dump(mode="json", exclude={"data_dir"}),
            "seconds": next(RunFolder(runs / "share" / method).records())["seconds"],
        }
        for method in SETTINGS
    }


def markdown(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """A row a method."""
    lines = [
        "| method | training, s | encoding, s | decoding, s | coding, share of work |",
        "| --- | --- | --- | --- | --- |",
    ]
    for method, entry in results.items():
        seconds = entry["seconds"]
        work = sum(seconds[phase] for phase in ("train", "encode", "decode", "aggregate"))
        share = (seconds["encode"] + seconds["decode"]) / work
        lines.append(
            f"| {method} | {seconds['train']:.1f} | {seconds['encode']:.2f} | {seconds['decode']:.2f} | {share:.1%} |"
        )
    return "\n".join(lines)
