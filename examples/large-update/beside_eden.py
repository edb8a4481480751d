"""Print the table of docs/performance.md: CPU time per parameter of `klms` at every effort, beside EDEN's.

    python examples/large-update/beside_eden.py

One thread, a normal vector of 2^20 entries, the best of several repetitions; in brackets, times EDEN's.
"""

import time

import numpy as np

from klms import SharedKey
from klms.compressors.base import Compressor
from klms.compressors.eden import Eden
from klms.compressors.klms import KLMS
from klms.compressors.layout import Layout

SIZE = 1 << 20
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
    update = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
    layout = Layout(("update",), ((SIZE,),))
    print("| bits | EDEN encodes | EDEN decodes | `fast` | `balanced` | `best` | decodes |")
    print("| --- " * 7 + "|")
    for rate in RATES:
        eden = measure(Eden(SIZE, rate, 1), update, 7)
        cells = [f"{rate:g}", f"{eden[0]:.1f}", f"{eden[1]:.1f}"]
        for effort in ("fast", "balanced", "best"):
            ours = measure(KLMS(layout, rate, effort, 1), update, 3 if effort == "best" else 7)
            cells.append(f"{ours[0]:.1f} ({ours[0] / eden[0]:.1f})")
        cells.append(f"{ours[1]:.1f} ({ours[1] / eden[1]:.2f})")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
