"""Memory that the dense scheme takes beside an update; as a script, measured in a process that does nothing else."""

import json
import sys
from functools import partial

import numpy as np

from klms import SharedKey
from klms.benchmarks.codec import peak_extra_bytes
from klms.compressors.layout import Layout
from klms.compressors.trellis import Trellis

KEY = SharedKey(5, 1, 0)
D = 1 << 21
KINDS = ("plain", "low rank")
RATES = (0.1, 1.0)
MATRICES = Layout(("a", "b"), ((1024, 1024), (1024, 1024)))
VECTOR = Layout(("all",), ((D,),))


def material(kind: str) -> tuple[Layout, np.ndarray]:
    """Return a vector of noise, or matrices of low rank with noise."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(D).astype(np.float32)
    if kind == "low rank":
        part = rng.standard_normal((1024, 8)) @ rng.standard_normal((8, 1024))
        return MATRICES, x + np.concatenate([part, part], axis=None).astype(np.float32)
    return VECTOR, x


def extra_per_update(kind: str, rate: float) -> dict[str, float | None]:
    """Return how much memory encoding and decoding take, in sizes of the update; None where Linux does not tell."""
    layout, x = material(kind)
    scheme = Trellis(layout, rate, threads=1)
    encode = partial(scheme.encode, x, {}, key=KEY, rng=np.random.default_rng(0))
    message = encode()  # and compile the kernels
    extra = {"encode": peak_extra_bytes(encode)}
    extra["decode"] = peak_extra_bytes(partial(scheme.decode, message, {}, key=KEY))
    return {work: taken and taken / x.nbytes for work, taken in extra.items()}


def main() -> None:
    """Print everything as one JSON object."""
    found = {kind: [extra_per_update(kind, rate) for rate in RATES] for kind in KINDS}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
