"""The paper's toy model (appendix F.1): N clients send samples of N(mu_n, 1) at the cost of their KL to N(0, 1).

`mu = 0.8`, and the gap is `|mean of the samples - mu|`. With an overhead of `r` nats, a sample costs `(KL + r) / ln 2`
bits, rounded up because an index has a whole number of bits. The samples go through the real codec: the message of a
client holds one sample for each of the paper's 100 repetitions, each in a block of its own. There are 1,000 clients.
For smaller N, every group of N clients is one more repetition, because the effect of heterogeneity on a single client
is too small for 100 repetitions to show.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from klms.codec import Codec, Gaussian, SharedKey, fixed_blocks

MU = 0.8
REPETITIONS = 100
CLIENTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
SEED = 0


class Curve(NamedTuple):
    """A setting of the model: overhead in nats, spread of the clients' means, memory of the codec in bits."""

    overhead: float = 0.0
    spread: float = 0.0
    memory: int = 0

    @property
    def bits(self) -> int:
        """Index bits of a sample that may cost `overhead` nats more than its KL."""
        return max(1, math.ceil((MU**2 / 2 + self.overhead) / math.log(2)))

    def samples(self) -> npt.NDArray[np.float64]:
        """Return the samples that the server decodes, with one row per client and one column per repetition."""
        rng = np.random.default_rng([SEED, 0x701])
        p = Gaussian(np.zeros(REPETITIONS), 1.0)
        blocks = fixed_blocks(REPETITIONS, 1)
        codec = Codec(bits=self.bits, threads=1, memory=self.memory)
        decoded = np.empty((max(CLIENTS), REPETITIONS))
        for client in range(max(CLIENTS)):
            q = Gaussian(MU + rng.uniform(-self.spread, self.spread, REPETITIONS), 1.0)
            key = SharedKey(seed=SEED, round=1, client=client)
            message = codec.encode(q, p, blocks, key=key, rng=rng)
            decoded[client] = codec.decode(message, p, key=key, blocks=blocks)
        return decoded

    def gaps(self) -> dict[str, list[float]]:
        """Return the mean and the deviation of the gap over repetitions, for every number of clients."""
        decoded = self.samples()
        found: dict[str, list[float]] = {"mean": [], "deviation": []}
        for n in CLIENTS:
            means = decoded[: len(decoded) // n * n].reshape(-1, n, REPETITIONS).mean(axis=1)
            gap = np.abs(means - MU).ravel()
            found["mean"].append(round(float(gap.mean()), 6))
            found["deviation"].append(round(float(gap.std(ddof=1)), 6))
        return found


class Toy(NamedTuple):
    """A figure, and its curves by the value of the symbol in which they differ."""

    title: str
    symbol: str
    curves: dict[str, Curve]


_OVERHEAD = "Estimating a mean from the samples of N clients, by overhead r"
_HETEROGENEITY = "Estimating a mean from the samples of N clients that differ"
_MEMORY = "Estimating a mean with one bit per sample and a memory of L bits"
TOYS = {
    "toy-overhead": Toy(_OVERHEAD, "r", {str(r): Curve(r) for r in (0, 2, 4, 6)}),
    "toy-heterogeneity": Toy(_HETEROGENEITY, "eta", {str(eta): Curve(6, eta) for eta in (0.05, 0.1, 0.25, 0.4)}),
    "toy-memory": Toy(_MEMORY, "L", {str(bits): Curve(memory=bits) for bits in (0, 2, 4, 8)}),
}


def run(name: str) -> dict[str, object]:
    """Return the curves of a figure, with everything that they depend on."""
    toy = TOYS[name]
    curves = {value: {"bits": curve.bits, **curve.gaps()} for value, curve in toy.curves.items()}
    about = {"experiment": name, "mu": MU, "runs": REPETITIONS, "seed": SEED, "symbol": toy.symbol}
    return {**about, "clients": list(CLIENTS), "curves": curves}
