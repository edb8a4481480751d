"""Measure what klms adds to a round of Flower's simulation: 10 clients, a million parameters, no training.

    python measure.py --out overhead.json

The two apps run in turn, several times. The first rounds of a run, in which processes start, do not count.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from klms.flower.deployment import Deployment

HERE = Path(__file__).parent
NODES = 10
WARM_UP = 4


def rounds(folder: Path, **settings) -> dict:
    """Run the app once in the simulation; return the seconds of its rounds."""
    results = folder / "seconds.json"
    with Deployment(folder, NODES, simulated=True) as deployment:
        number = deployment.submit(HERE, {"results": str(results), **settings})
        if deployment.wait(number, timeout=1800) != "finished:completed":
            raise SystemExit(deployment.log("superlink")[-3000:])
    return json.loads(results.read_text())


def main() -> None:
    """Print the median seconds per round, with klms and without."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("overhead.json"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bits", type=float, default=1.0)
    parser.add_argument("--scheme", default="auto")
    options = parser.parse_args()
    found: dict[str, list[float]] = {"stock": [], "compressed": []}
    sent = {}
    with tempfile.TemporaryDirectory() as temporary:
        for repeat in range(options.repeats):
            for name, bits in (("stock", 0.0), ("compressed", options.bits)):
                settings = {"bits-per-parameter": bits, "scheme": options.scheme}
                run = rounds(Path(temporary) / f"{name}-{repeat}", **settings)
                found[name] += run["seconds"][WARM_UP:]
                sent = run["metrics"][-1] or sent
    medians = {name: statistics.median(values) for name, values in found.items()}
    extra = medians["compressed"] - medians["stock"]
    outcome = {"seconds": found, "median": medians, "extra_seconds": extra}
    outcome["bits_per_parameter"] = sent["klms-bits-per-parameter"]
    options.out.write_text(json.dumps(outcome, indent=1) + "\n")
    print(
        f"a round takes {medians['stock']:.2f} s without klms, {medians['compressed']:.2f} s with it "
        f"at {outcome['bits_per_parameter']:.3f} bits per parameter: {extra:+.2f} s"
    )


if __name__ == "__main__":
    main()
