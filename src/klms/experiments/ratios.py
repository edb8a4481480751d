"""The paper's ratios, measured: each method with KLMS against the same without, over seeds.

Runs are `klms run METHOD --profile small --seed S` in folders of their own; what is finished is not run again. The
outcome is committed as JSON, and `docs/results.md` is made of that JSON.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from klms.experiments import run as running
from klms.experiments.run import Progress
from klms.experiments.run_folder import CONFIG, VERSIONS, RunFolder
from klms.experiments.settings import SettingsError, resolve


@dataclass(frozen=True)
class Pair:
    """A claim: `ours` is at most `gap` behind `vanilla` in accuracy, at `times` fewer bits."""

    vanilla: str
    ours: str
    gap: float
    times: float


PAIRS = (
    Pair("fedpm", "fedpm-klms", 0.005, 25.0),
    Pair("signsgd", "signsgd-klms", 0.0, 20.0),
    Pair("qsgd", "qsgd-klms", 0.005, 3.0),
    Pair("qlsd", "sgld-klms", 0.0, 5.0),
)
SINGLE = ("fedavg", "signsgd-stochastic", "sgld")
METHODS = (*(name for pair in PAIRS for name in (pair.vanilla, pair.ours)), *SINGLE)


def run(runs: Path, methods: Sequence[str], seeds: int, workers: int, progress: Progress | None) -> None:
    """Run what is not finished."""
    for seed in range(seeds):
        for method in methods:
            folder = runs / f"{method}-{seed}"
            if (folder / CONFIG).exists():
                running.resume(folder, workers=workers, progress=progress)
            else:
                config = resolve(method, profile="small", given={"seed": seed})
                running.start(config, folder, workers=workers, progress=progress)


def collect(runs: Path) -> dict[str, object]:
    """All finished runs in a folder as one document: configuration, versions, and every seed's numbers."""
    methods: dict[str, dict[str, object]] = {}
    versions: object = {}
    for path in sorted(file.parent for file in runs.glob(f"*/{CONFIG}")):
        folder = RunFolder(path)
        config = folder.config()
        records = list(folder.records())
        if len(records) < config.rounds:
            continue
        versions = json.loads((path / VERSIONS).read_text())
        settings = config.model_dump(mode="json", exclude={"seed", "data_dir"})
        entry = methods.setdefault(config.method, {"config": settings, "seeds": {}})
        if entry["config"] != settings:
            raise SettingsError(f"{path} was run with other settings than the other seeds of {config.method}")
        summary = running.summarise(folder)
        seeds = entry["seeds"]
        assert isinstance(seeds, dict)
        seeds[str(config.seed)] = {
            **{name: round(value, 6) for name, value in summary.metrics.items()},
            "bits_per_parameter": round(summary.bits_per_parameter, 6),
            "uplink_bytes": summary.uplink_bytes,
            "coding_share": round(summary.encode_share, 4),
            "seconds": round(summary.seconds, 1),
        }
    return {"versions": versions, "methods": methods}


def _mean(entry: dict[str, dict[str, dict[str, float]]], name: str) -> tuple[float, float]:
    values = [seed[name] for seed in entry["seeds"].values()]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def markdown(results: dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]) -> str:
    """The tables of docs/results.md."""
    methods = results["methods"]
    lines = ["| method | seeds | accuracy | bits per parameter | times below 32 bits | coding, share of work |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name in (name for name in METHODS if name in methods):
        accuracy, spread = _mean(methods[name], "accuracy")
        bits, _ = _mean(methods[name], "bits_per_parameter")
        share, _ = _mean(methods[name], "coding_share")
        count = len(methods[name]["seeds"])
        lines.append(
            f"| {name} | {count} | {accuracy:.4f} ± {spread:.4f} | {bits:.4f} | {32 / bits:,.0f} | {share:.1%} |"
        )
    lines += ["", "| pair | accuracy, ours minus vanilla | allowed | times fewer bits | wanted | |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for pair in PAIRS:
        if pair.vanilla in methods and pair.ours in methods:
            gap = _mean(methods[pair.ours], "accuracy")[0] - _mean(methods[pair.vanilla], "accuracy")[0]
            vanilla, ours = (_mean(methods[n], "bits_per_parameter")[0] for n in (pair.vanilla, pair.ours))
            times = vanilla / ours
            verdict = "reached" if gap >= -pair.gap and times >= pair.times else "not reached"
            lines.append(
                f"| {pair.ours} : {pair.vanilla} | {gap:+.4f} | {-pair.gap:+.3f} | {times:.1f} | {pair.times:.0f} "
                f"| {verdict} |"
            )
    return "\n".join(lines)
