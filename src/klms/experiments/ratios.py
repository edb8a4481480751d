"""The paper's claims as measured: each method with KLMS compared with the same method without, over all seeds."""

from dataclasses import dataclass
from typing import Any

from klms.experiments.tables import mean_and_deviation


@dataclass(frozen=True)
class Claim:
    """With KLMS, a method loses at most `gap` of its accuracy and sends at least `factor` times fewer bits."""

    without: str
    with_klms: str
    gap: float
    factor: float


CLAIMS = (
    Claim("fedpm", "fedpm-klms", 0.005, 25.0),
    Claim("signsgd", "signsgd-klms", 0.0, 20.0),
    Claim("qsgd", "qsgd-klms", 0.005, 3.0),
    Claim("qlsd", "sgld-klms", 0.0, 5.0),
)


def markdown(rows: dict[str, Any]) -> str:
    """Return a table with one row per claim, from the rows of one data set."""
    lines = ["| with KLMS, without | difference in accuracy | at least | times fewer bits | at least | |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for claim in CLAIMS:
        accuracy, bits = (
            [mean_and_deviation(rows[name], what)[0] for name in (claim.without, claim.with_klms)]
            for what in ("accuracy", "bits_per_parameter")
        )
        gap, factor = accuracy[1] - accuracy[0], bits[0] / bits[1]
        verdict = "reached" if gap >= -claim.gap and factor >= claim.factor else "not reached"
        cells = (f"{gap:+.4f}", f"{-claim.gap:+.3f}", f"{factor:.1f}", f"{claim.factor:.0f}", verdict)
        lines.append(f"| {claim.with_klms}, {claim.without} | {' | '.join(cells)} |")
    return "\n".join(lines)
