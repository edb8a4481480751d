"""Print the tables of docs/performance.md: CPU time per parameter of `trellis` at every effort, and of EDEN.

    python examples/large-update/beside_eden.py --update vector
    python examples/large-update/beside_eden.py --update matrix
    python examples/large-update/beside_eden.py --update low-rank

The update is 2^20 normal entries as a vector, as a square matrix, or added to a square matrix of rank 12 and the same
power. Times are the best of several repetitions on one thread; in brackets is the ratio to EDEN's time.
"""

import argparse
import time

import numpy as np

from klms import SharedKey
from klms.compressors.base import Compressor
from klms.compressors.eden import Eden
from klms.compressors.layout import Layout
from klms.compressors.trellis import Trellis

SIDE, RANK = 1 << 10, 12
SIZE = SIDE * SIDE
RATES = (0.02, 0.1, 0.5, 1.0, 2.0, 4.0)


def measure(scheme: Compressor, update: np.ndarray, repetitions: int) -> tuple[float, float]:
    """Return the nanoseconds per parameter to encode and to decode."""
    encoding, decoding = [], []
    for number in range(repetitions):
        key, rng = SharedKey(1, 2, number), np.random.default_rng(number)
        start = time.thread_time()
        message = scheme.encode(update, {}, key=key, rng=rng)
        middle = time.thread_time()
        scheme.decode(message, {}, key=key)
        encoding.append(middle - start)
        decoding.append(time.thread_time() - middle)
    return min(encoding) / SIZE * 1e9, min(decoding) / SIZE * 1e9


def main() -> None:
    """Print one line per rate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", choices=("vector", "matrix", "low-rank"), default="vector")
    kind = parser.parse_args().update
    rng = np.random.default_rng(0)
    update = rng.standard_normal(SIZE, dtype=np.float32)
    if kind == "low-rank":
        factors = rng.standard_normal((2, SIDE, RANK), dtype=np.float32)
        update += (factors[0] @ factors[1].T).ravel() / np.float32(RANK**0.5)
    layout = Layout(("update",), ((SIZE,) if kind == "vector" else (SIDE, SIDE),))
    print("| bits | EDEN encodes | EDEN decodes | `fast` | `balanced` | `best` | decodes |")
    print("| --- " * 7 + "|")
    for rate in RATES:
        eden = measure(Eden(layout, rate, 1), update, 7)
        cells = [f"{rate:g}", f"{eden[0]:.1f}", f"{eden[1]:.1f}"]
        for effort in ("fast", "balanced", "best"):
            ours = measure(Trellis(layout, rate, effort, 1), update, 3 if effort == "best" else 7)
            cells.append(f"{ours[0]:.1f} ({ours[0] / eden[0]:.1f})")
        cells.append(f"{ours[1]:.1f} ({ours[1] / eden[1]:.2f})")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
