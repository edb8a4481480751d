"""Results as committed: JSON under `results/`, and `docs/results.md` made of it and of nothing else."""

import json
from pathlib import Path

from klms.experiments import block_policies, ratios

RATIOS, BLOCK_POLICIES = "ratios.json", "block-policies.json"

_HEADER = """# Results

Made by `make results` from the JSON under `results/`, which holds every seed's numbers with the configuration and the
versions that made them; a test fails when the two disagree. Bits are those of messages that were sent and decoded:
`8 * len(message) / d`, mean over clients and rounds, headers and block maps included.

All of it is `klms run METHOD --profile small`: real MNIST, 6,000 training images over 10 clients, LeNet (431,080
parameters), the whole test set; the settings are in `src/klms/experiments/profiles/small.toml`. Small on purpose,
minutes on two cores: the accuracies are those of 6,000 images, not of 60,000.

## With KLMS and without
"""

_TRIED = """
FedPM's accuracy is that of one sampled mask; the Langevin methods' that of the posterior average over the samples after
burn-in.

What was tried on the way (seed 0): SignSGD with server learning rates 0.001 and 0.002; SignSGD-KLMS with 0.002, 0.003,
0.004, 0.006 and 0.01 and scales 1.5 and 2; QSGD-KLMS with server rates 0.4 and 0.5, priors 10 and 30, selections
`sample` and `matched`; QLSD with 16 and 8 levels; SGLD-KLMS with 8 bits for 8, 3
and 1.5 bits of KL and 6 for 2, merging block maps by location and by count. The better one of each is in
the profile.

## Adaptive blocks against fixed ones (the paper's figure 3)

FedPM-KLMS, seed 0, 8 bits a block with a target of 9.5 bits of KL; the fixed blocks have the size that fits the KL of
the first round.
"""


def document(folder: Path) -> str:
    """`docs/results.md`."""
    compared = json.loads((folder / RATIOS).read_text())
    policies = json.loads((folder / BLOCK_POLICIES).read_text())
    return "\n".join([_HEADER, ratios.markdown(compared), _TRIED, block_policies.markdown(policies), ""])


def write_json(folder: Path, name: str, results: object) -> Path:
    """A results file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return path
