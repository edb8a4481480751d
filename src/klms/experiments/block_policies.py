"""The paper's comparison of block policies (figure 3): index bits against KL, round by round.

FedPM-KLMS runs with adaptive blocks, and with fixed blocks of the size that suits the first round. Adaptive blocks grow
as the KL falls, whereas fixed blocks keep costing what the first round needed.
"""

from typing import Any

TOLERANCE = 0.3


def markdown(results: dict[str, Any]) -> str:
    """Return a table of every few rounds, and a sentence about each run as a whole."""
    ((_, rows),) = results["data"].items()
    lines = ["| blocks | round | KL, bits per parameter | index bits per parameter | index bits / KL | update round |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    notes = []
    for policy, row in rows.items():
        kls, indices, bits, updates = row["series"].values()
        every = max(1, len(kls) // 8)
        for n in range(0, len(kls), every):
            lines.append(
                f"| {policy} | {n + 1} | {kls[n]:.4f} | {indices[n]:.4f} | {indices[n] / kls[n]:.2f} "
                f"| {'yes' if updates[n] else ''} |"
            )
        ratios = [index / kl for index, kl in zip(indices, kls, strict=True)]
        inside = sum(abs(ratio - 1) <= TOLERANCE for ratio in ratios)
        notes.append(
            f"- {policy}: the index bits are within {TOLERANCE:.0%} of the KL in {inside} of {len(kls)} rounds "
            f"(ratios from {min(ratios):.2f} to {max(ratios):.2f}); all bytes, including the block maps of "
            f"{sum(map(bool, updates))} update rounds, cost {sum(bits) / sum(kls):.2f} times the KL."
        )
    return "\n".join([*lines, "", *notes])
