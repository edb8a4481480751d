"""The paper's claims, measured: each method with KLMS against the same without, over seeds."""

from dataclasses import dataclass
from typing import Any

from klms.experiments.tables import mean_and_deviation


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


def markdown(rows: dict[str, Any]) -> str:
    """A line a claim; `rows` are those of one data set."""
    lines = ["| pair | accuracy, ours minus vanilla | allowed | times fewer bits | wanted | |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for pair in PAIRS:
        accuracy, bits = (
            [mean_and_deviation(rows[name], what)[0] for name in (pair.vanilla, pair.ours)]
            for what in ("accuracy", "bits_per_parameter")
        )
        gap, times = accuracy[1] - accuracy[0], bits[0] / bits[1]
        verdict = "reached" if gap >= -pair.gap and times >= pair.times else "not reached"
        cells = (f"{gap:+.4f}", f"{-pair.gap:+.3f}", f"{times:.1f}", f"{pair.times:.0f}", verdict)
        lines.append(f"| {pair.ours} : {pair.vanilla} | {' | '.join(cells)} |")
    return "\n".join(lines)
