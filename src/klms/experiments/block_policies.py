"""The paper's ablation of block policies (figure 3): bits of the indices against KL, round by round.

FedPM-KLMS with adaptive blocks, and with fixed blocks of the size that fits the first round. Adaptive blocks follow the
KL as it falls; fixed ones go on paying for the first round's.
"""

from pathlib import Path

from klms.experiments import run as running
from klms.experiments.run import Progress
from klms.experiments.run_folder import CONFIG, RunFolder
from klms.experiments.settings import resolve

TOLERANCE = 0.3
SETTINGS: dict[str, object] = {"target": 9.5, "low": 0.72, "high": 1.3}
"""8 bits for blocks of 6.5 to 12.3 bits of KL: the bits stay within 30 % of it."""


def run(runs: Path, workers: int, progress: Progress | None) -> dict[str, object]:
    """Both runs, and what they say."""
    adaptive = runs / "blocks" / "adaptive"
    _go(adaptive, SETTINGS, workers, progress)
    first = next(RunFolder(adaptive).records())
    config = RunFolder(adaptive).config()
    size = round(config.bits / float(str(first["kl_bits_per_parameter"])))
    fixed = runs / "blocks" / "fixed"
    _go(fixed, SETTINGS | {"fixed": size}, workers, progress)
    return {"fixed_size": size, "adaptive": series(adaptive), "fixed": series(fixed)}


def _go(path: Path, given: dict[str, object], workers: int, progress: Progress | None) -> None:
    if (path / CONFIG).exists():
        running.resume(path, workers=workers, progress=progress)
    else:
        running.start(resolve("fedpm-klms", profile="small", given=given), path, workers=workers, progress=progress)


def series(path: Path) -> dict[str, object]:
    """A run, round by round: KL, bits of the indices, bits of all that was sent, and their ratio."""
    names = ("round", "kl_bits_per_parameter", "index_bits_per_parameter", "bits_per_parameter", "update_round")
    rows = [[record[name] for name in names] for record in RunFolder(path).records()]
    return {
        "config": RunFolder(path).config().model_dump(mode="json", exclude={"data_dir"}),
        "columns": names,
        "rows": rows,
    }


def markdown(results: dict[str, dict[str, list[list[float]]]]) -> str:
    """A table of every few rounds, and over the run."""
    lines = ["| blocks | round | KL, bits per parameter | index bits per parameter | bits : KL | update round |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for policy in ("adaptive", "fixed"):
        rows = results[policy]["rows"]
        for number, kl, index, _, update in rows[:: max(1, len(rows) // 8)]:
            lines.append(
                f"| {policy} | {number:.0f} | {kl:.4f} | {index:.4f} | {index / kl:.2f} | {'yes' if update else ''} |"
            )
    lines.append("")
    for policy in ("adaptive", "fixed"):
        rows = results[policy]["rows"]
        ratios = [index / kl for _, kl, index, _, _ in rows]
        inside = sum(abs(ratio - 1) <= TOLERANCE for ratio in ratios)
        total = sum(row[3] for row in rows) / sum(row[1] for row in rows)
        lines.append(
            f"- {policy}: bits of the indices within 30 % of the KL in {inside} of {len(rows)} rounds "
            f"(ratios {min(ratios):.2f} to {max(ratios):.2f}); all bytes, block maps of "
            f"{sum(bool(row[4]) for row in rows)} update rounds included, come to {total:.2f} times the KL."
        )
    return "\n".join(lines)
