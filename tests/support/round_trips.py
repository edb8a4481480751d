"""One small message of every scheme, sent and received; as a script, printed, to compare ways to run the kernels."""

import json
import sys

import numba
import numpy as np

from klms import SharedKey
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.layout import Layout
from klms.compressors.schemes import SCHEMES

LAYOUT = Layout(("weight", "bias"), ((20, 15), (50,)))
KEY = SharedKey(seed=1, round=2, client=3)
SMALL = {"bits": 4, "target": 3.0, "rate": 0.75, "bucket": 64, "levels": 3, "keep": 0.1}


def small(name: str) -> Compressor:
    """Return a scheme at settings at which few candidates are drawn."""
    scheme = SCHEMES[name]
    values = {setting: value for setting, value in SMALL.items() if setting in scheme.settings.model_fields}
    return scheme.create(LAYOUT, values, threads=1)


def material(name: str, compressor: Compressor, d: int = LAYOUT.d) -> tuple[Vector, Side]:
    """Return an update or mask probabilities, whichever the scheme codes, and side information to code it with."""
    rng = np.random.default_rng(0)
    if SCHEMES[name].codes == "masks":
        theta = np.full(d, 0.5, dtype=np.float32)
        return rng.uniform(0.05, 0.95, d).astype(np.float32), {**compressor.start(), "theta": theta}
    return rng.normal(0, 0.1, d).astype(np.float32), compressor.start()


def round_trip(name: str) -> tuple[bytes, np.ndarray]:
    """Return the message and the decoded vector."""
    compressor = small(name)
    update, side = material(name, compressor)
    message = compressor.encode(update, side, key=KEY, rng=np.random.default_rng(5))
    return message, compressor.decode(message, side, key=KEY).vector


if __name__ == "__main__":
    trips = {name: round_trip(name) for name in SCHEMES}
    found = {name: [message.hex(), vector.tobytes().hex()] for name, (message, vector) in trips.items()}
    json.dump({"compiled": not numba.config.DISABLE_JIT, "trips": found}, sys.stdout)
