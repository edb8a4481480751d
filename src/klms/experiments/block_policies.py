"""The paper's ablation of block policies (figure 3): bits of the indices against KL, round by round.

FedPM-KLMS with adaptive blocks, and with fixed blocks of the size that fits the first round. Adaptive blocks follow the
KL as it falls; fixed ones go on paying for the first round's.
"""

from typing import Any

TOLERANCE = 0.3


def markdown(results: dict[str, Any]) -> str:
    """A table of every few rounds, and over the run."""
    ((_, rows),) = results["data"].items()
    lines = ["| blocks | round | KL, bits per parameter | index bits per parameter | bits : KL | update round |"]
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
            f"- {policy}: bits of the indices within 30 % of the KL in {inside} of {len(kls)} rounds "
            f"(ratios {min(ratios):.2f} to {max(ratios):.2f}); all bytes, block maps of "
            f"{sum(map(bool, updates))} update rounds included, come to {sum(bits) / sum(kls):.2f} times the KL."
        )
    return "\n".join([*lines, "", *notes])
