"""Compress and decompress a large update: seconds and peak memory.

python examples/large-update/measure.py --parameters 100000000 --bits 1
"""

import argparse
import resource
import time

import numpy as np

import klms


def main() -> None:
    """Print what one message takes, after a small one that compiles."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--bits", type=float, default=1.0)
    options = parser.parse_args()
    rng, key = np.random.default_rng(0), klms.SharedKey(seed=1, round=1, client=1)
    size = options.parameters // 10
    update = {f"layer{n}": rng.standard_normal(size, dtype=np.float32) for n in range(10)}
    klms.decompress(klms.compress({"small": update["layer0"][:300_000]}, options.bits, key=key), key=key)
    peaks, times = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss], [time.perf_counter()]
    message = klms.compress(update, options.bits, key=key)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    times.append(time.perf_counter())
    klms.decompress(message, key=key)
    times.append(time.perf_counter())
    extra = (peaks[1] - peaks[0]) * 1024 / (40 * size)
    print(
        f"{10 * size:,} parameters at {0.8 * len(message) / size:.4f} bits: compressed in {times[1] - times[0]:.1f} s "
        f"with {extra:.1f} times the memory of the update, decompressed in {times[2] - times[1]:.1f} s"
    )


if __name__ == "__main__":
    main()
