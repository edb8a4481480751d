"""Compress and decompress a large update, and measure the seconds and the additional memory.

    python examples/large-update/measure.py --parameters 1000000000 --bits 1

The update has ten arrays of normal entries, square matrices with `--matrices`. Memory is counted in addition to the
update, or to the decoded update; the message, which is in memory in both cases, is included.
"""

import argparse
import time
from functools import partial

import numpy as np

import klms
from klms.benchmarks.codec import peak_extra_bytes

ARRAYS = 10


def shape_of(parameters: int, matrices: bool) -> tuple[int, ...]:
    """Return the shape of one of the arrays."""
    size = parameters // ARRAYS
    side = max(1, int(size**0.5))
    return (side, size // side) if matrices else (size,)


def measured(work: partial) -> tuple[object, float, float]:
    """Return the result of the work, its seconds, and the additional bytes at its peak."""
    results = []
    started = time.perf_counter()
    extra = peak_extra_bytes(lambda: results.append(work()))
    return results[0], time.perf_counter() - started, extra or 0.0


def main() -> None:
    """Print the time and memory of one message, after a small message that compiles the kernels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--bits", type=float, default=1.0)
    parser.add_argument("--matrices", action="store_true", help="square matrices instead of vectors")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = shape_of(options.parameters, options.matrices)
    update = {f"layer{n}": rng.standard_normal(shape, dtype=np.float32) for n in range(ARRAYS)}
    size = sum(array.nbytes for array in update.values())
    small = {"small": update["layer0"].ravel()[:300_000].reshape(300, -1)}
    klms.decompress(klms.compress(small, options.bits))

    message, seconds, extra = measured(partial(klms.compress, update, options.bits))
    bits = 32 * len(message) / size
    print(f"{size // 4:,} parameters at {bits:.4f} bits: compressed in {seconds:.1f} s with {extra / 1e9:.2f} GB extra")
    update.clear()
    _, seconds, extra = measured(partial(klms.decompress, message))
    print(f"decompressed in {seconds:.1f} s with {(extra - size) / 1e9:.2f} GB extra", flush=True)


if __name__ == "__main__":
    main()
