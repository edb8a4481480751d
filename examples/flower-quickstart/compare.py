"""Compare the stock app with the same app after `compressed.diff`: accuracy after ten rounds, and bytes sent.

    python compare.py --out comparison.json

Both run with FedAvg and with FedAdam, in Flower's simulation and on a SuperLink with three SuperNodes, which takes half
an hour on two cores. `--only simulation --only fedavg` runs a part of that.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from klms.flower.deployment import Deployment

HERE = Path(__file__).parent
NODES = 3


def run(app: Path, folder: Path, settings: dict, *, simulated: bool) -> dict:
    """Run an app once; return its history and the bytes on the wire."""
    results = folder / "results.json"
    with Deployment(folder, NODES, simulated=simulated) as deployment:
        before = deployment.wire()
        number = deployment.submit(app, {**settings, "results": str(results)})
        status = deployment.wait(number, timeout=3600)
        wire = deployment.wire() - before
        if status != "finished:completed":
            raise SystemExit(f"{status}: {deployment.why(number)}\n{deployment.log('superlink')[-2000:]}")
    history = json.loads(results.read_text())
    accuracy = [record["accuracy"] for record in history["evaluate"].values()]
    bits = [record["klms-bits-per-parameter"] for record in history["train"].values() if "klms-ok" in record]
    sent = [record["klms-uplink-bytes"] for record in history["train"].values() if "klms-ok" in record]
    return {
        "accuracy": accuracy,
        "bits_per_parameter": sum(bits) / len(bits) if bits else 32.0,
        "payload_bytes": sum(sent) if sent else None,
        "wire_up": wire.up,
        "wire_down": wire.down,
    }


def main() -> None:
    """Run all requested combinations and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("comparison.json"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", action="append", default=[])
    options = parser.parse_args()
    outcome: dict = {"rounds": options.rounds, "nodes": NODES, "runs": {}}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        subprocess.run([sys.executable, HERE / "prepare.py", work / "digits.npz"], check=True)
        apps = {"stock": work / "stock", "compressed": work / "compressed"}
        for app in apps.values():
            shutil.copytree(HERE, app)
        subprocess.run(["patch", "-p1", "-s", "-i", "compressed.diff"], cwd=apps["compressed"], check=True)
        for engine in ("simulation", "deployment"):
            for strategy in ("fedavg", "fedadam"):
                if not set(options.only) <= {engine, strategy}:
                    continue
                for name, app in apps.items():
                    settings = {"data": str(work / "digits.npz"), "strategy": strategy}
                    settings["num-server-rounds"] = options.rounds
                    folder = work / f"{engine}-{strategy}-{name}"
                    found = run(app, folder, settings, simulated=engine == "simulation")
                    outcome["runs"][f"{engine}, {strategy}, {name}"] = found
                    print(
                        f"{engine:10}  {strategy:7}  {name:10}  accuracy {found['accuracy'][-1]:.4f}"
                        f"  bits per parameter {found['bits_per_parameter']:.3f}  wire up {found['wire_up']:,}",
                        flush=True,
                    )
                    options.out.write_text(json.dumps(outcome, indent=1) + "\n")


if __name__ == "__main__":
    main()
