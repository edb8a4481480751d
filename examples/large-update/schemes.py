"""Encode and decode one update of a very large model with every scheme: seconds, and the peak of memory.

    python examples/large-update/schemes.py --parameters 100000000

Each scheme runs in a process of its own, on all cores, after a small update that has compiled its kernels. The peak is
that of the whole process: the interpreter with all libraries, the update, the side information, the message and the
decoded update.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

from klms import SharedKey
from klms.compressors.layout import Layout
from klms.compressors.schemes import UPDATE_SCHEMES

SETTINGS = {"eden": {"rate": 1.0}, "trellis": {"rate": 1.0}, "topk": {"keep": 0.01}}
"""Settings of schemes whose defaults do not suit so many parameters."""
ARRAYS = 10


def layout_of(parameters: int) -> Layout:
    """Return a layout of matrices with about this many entries in total."""
    rows = max(1, round((parameters / ARRAYS) ** 0.5))
    shape = (rows, max(1, parameters // (ARRAYS * rows)))
    return Layout(tuple(f"layer {number}" for number in range(ARRAYS)), (shape,) * ARRAYS)


def once(name: str, parameters: int) -> dict[str, float]:
    """Return the seconds of one encoding and one decoding, and the bits per parameter."""
    layout, key = layout_of(parameters), SharedKey(1, 2, 3)
    scheme = UPDATE_SCHEMES[name].create(layout, SETTINGS.get(name, {}))
    update = np.empty(layout.d, dtype=np.float32)
    np.random.default_rng(0).standard_normal(out=update, dtype=np.float32)
    update *= np.float32(1e-3)
    side = scheme.start()
    start = time.perf_counter()
    message = scheme.encode(update, side, key=key, rng=np.random.default_rng(1))
    middle = time.perf_counter()
    size = scheme.decode(message, side, key=key).vector.size
    end = time.perf_counter()
    assert size == layout.d
    return {"encode": middle - start, "decode": end - middle, "bits": 8 * len(message) / layout.d}


def main() -> None:
    """Print one line of a table per scheme."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--scheme", action="append", choices=UPDATE_SCHEMES)
    parser.add_argument("--here", action="store_true", help="measure one scheme in this very process")
    options = parser.parse_args()
    schemes = options.scheme or list(UPDATE_SCHEMES)
    if options.here:
        once(schemes[0], 100_000)
        found = once(schemes[0], options.parameters)
        found["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        print(json.dumps(found))
        return
    print("| scheme | bits | encode, s | decode, s | peak, GB |\n| --- | --- | --- | --- | --- |")
    for name in schemes:
        command = [sys.executable, __file__, "--here", "--scheme", name, "--parameters", str(options.parameters)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        numbers = f"{found['bits']:.3g} | {found['encode']:.1f} | {found['decode']:.1f} | {found['gigabytes']:.2f}"
        print(f"| {name} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
