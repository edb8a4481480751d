"""The paper's toy model (appendix F.1): N clients send samples of N(mu_n, 1) at their KL to N(0, 1), to be averaged.

`mu = 0.8`, and the gap is `|mean of the samples - mu|`. With an overhead of `r` nats, a sample costs `(KL + r) / ln 2`
bits, rounded up because an index has a whole number of bits. The samples go through the real codec: the message of a
client holds one sample for each of the paper's 100 repetitions, each in a block of its own. There are 1,000 clients.
For smaller N, every group of N clients is one more repetition, because the effect of heterogeneity on a single client
is too small for 100 repetitions to show.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from klms.codec import Codec, Gaussian, SharedKey, fixed_blocks
from klms.experiments.tables import table

MU = 0.8
REPETITIONS = 100
CLIENTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
OVERHEADS = (0.0, 2.0, 4.0, 6.0)
SPREADS = (0.05, 0.1, 0.25, 0.4)
MEMORIES = (0, 2, 4, 8)
OVERHEAD_OF_SPREADS = 6.0


def index_bits(overhead: float) -> int:
    """Return the index bits of a sample that may cost `overhead` nats more than its KL."""
    return max(1, math.ceil((MU**2 / 2 + overhead) / math.log(2)))


def samples(overhead: float, spread: float, seed: int, memory: int = 0) -> npt.NDArray[np.float64]:
    """Return what the server decodes, with one row per client and one column per repetition."""
    rng = np.random.default_rng([seed, 0x701])
    p, blocks = Gaussian(np.zeros(REPETITIONS), 1.0), fixed_blocks(REPETITIONS, 1)
    codec = Codec(bits=index_bits(overhead), threads=1, memory=memory)
    decoded = np.empty((max(CLIENTS), REPETITIONS))
    for client in range(max(CLIENTS)):
        q = Gaussian(MU + rng.uniform(-spread, spread, REPETITIONS), 1.0)
        key = SharedKey(seed=seed, round=1, client=client)
        message = codec.encode(q, p, blocks, key=key, rng=rng)
        decoded[client] = codec.decode(message, p, key=key, blocks=blocks)
    return decoded


def gaps(overhead: float, spread: float, seed: int, memory: int = 0) -> dict[str, list[float]]:
    """Return the mean and the deviation of the gap over repetitions, for every number of clients."""
    decoded = samples(overhead, spread, seed, memory)
    means = [decoded[: len(decoded) // n * n].reshape(-1, n, REPETITIONS).mean(axis=1).ravel() for n in CLIENTS]
    found = [np.abs(mean - MU) for mean in means]
    deviations = [round(float(gap.std(ddof=1)), 6) for gap in found]
    return {"mean": [round(float(gap.mean()), 6) for gap in found], "deviation": deviations}


@dataclass(frozen=True)
class Toy:
    """A figure whose curves differ in the overhead `r`, the spread `eta` of the clients' means, or the memory `L`."""

    name: str
    title: str
    symbol: str
    values: tuple[float, ...]

    def run(self, seed: int = 0) -> dict[str, object]:
        curves = {}
        for value in self.values:
            overhead = {"r": value, "eta": OVERHEAD_OF_SPREADS}.get(self.symbol, 0.0)
            spread, memory = value if self.symbol == "eta" else 0.0, int(value) if self.symbol == "L" else 0
            curves[f"{value:g}"] = {"bits": index_bits(overhead), **gaps(overhead, spread, seed, memory)}
        settings = {"experiment": self.name, "mu": MU, "runs": REPETITIONS, "seed": seed, "symbol": self.symbol}
        return {**settings, "clients": list(CLIENTS), "curves": curves}


_TOYS = (
    Toy("toy-overhead", "Estimating a mean from the samples of N clients, by overhead r", "r", OVERHEADS),
    Toy("toy-heterogeneity", "Estimating a mean from the samples of N clients that differ", "eta", SPREADS),
    Toy("toy-memory", "Estimating a mean with one bit per sample and a memory of L bits", "L", MEMORIES),
)
TOYS = {toy.name: toy for toy in _TOYS}


def markdown(results: dict[str, Any]) -> str:
    """Return a table of the gap at a few numbers of clients."""
    places = [results["clients"].index(n) for n in (1, 10, 100, 1000)]
    lines = []
    for value, curve in results["curves"].items():
        gaps = (f"{curve['mean'][n]:.3f} ± {curve['deviation'][n]:.3f}" for n in places)
        lines.append((value, str(curve["bits"]), *gaps))
    return table((results["symbol"], "bits", *(f"N = {results['clients'][n]}" for n in places)), lines)


def draw(results: dict[str, Any], path: Path | str) -> None:
    """Draw the paper's figure: deviation (left) and mean (right) of the gap against the number of clients."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, what in zip(panels, ("deviation", "mean"), strict=True):
        for value, curve in results["curves"].items():
            axes.plot(results["clients"], curve[what], marker="o", markersize=3, label=f"{results['symbol']} = {value}")
        axes.set(xscale="log", xlabel="clients", ylabel=f"estimation gap, {what}")
        axes.grid(alpha=0.3)
    panels[1].legend()
    figure.savefig(path, dpi=150)
