"""Compare the stock app with the same app after `compressed.diff`: accuracy, and bytes in both directions.

    python compare.py --out comparison.json

Five strategies, four rates and three seeds in Flower's simulation with ten clients, then FedAvg on a SuperLink with
three SuperNodes: two hours on two cores. A run that is in the file already is not repeated. `--only` restricts what is
run: `--only simulation --only fedavg --seeds 1`.
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
RATES = {
    "stock": "",
    "1 bit": "bits_per_parameter=1, first=1",
    "0.1 up, 0.3 down": "up=0.1, down=0.3, first=1",
    "0.1 bits": "bits_per_parameter=0.1, first=1",
}
"""Arguments of `Compressed`. The model is new, so that one bit will do for the first broadcast."""
STRATEGIES = ("fedavg", "fedadam", "fedyogi", "fedprox", "fedmedian")
NODES = {"simulation": 10, "deployment": 3}
PARAMETERS = 44_426


def run(app: Path, folder: Path, settings: dict, nodes: int, *, simulated: bool) -> dict:
    """Run an app once; return its history and the bytes on the wire."""
    results = folder / "results.json"
    with Deployment(folder, nodes, simulated=simulated) as deployment:
        before = deployment.wire()
        number = deployment.submit(app, {**settings, "results": str(results)})
        status = deployment.wait(number, timeout=3600)
        wire = deployment.wire() - before
        if status != "finished:completed":
            raise SystemExit(f"{status}: {deployment.why(number)}\n{deployment.log('superlink')[-2000:]}")
    history = json.loads(results.read_text())
    rounds = list(history["train"].values())
    stock = 4 * PARAMETERS * nodes * len(rounds)
    return {
        "accuracy": [record["accuracy"] for record in history["evaluate"].values()],
        "uplink_bytes": sum(record.get("klms-uplink-bytes", stock / len(rounds)) for record in rounds),
        "downlink_bytes": sum(record.get("klms-downlink-bytes", stock / len(rounds)) for record in rounds),
        "stock_bytes": 2 * stock,
        "wire_up": wire.up,
        "wire_down": wire.down,
    }


def main() -> None:
    """Run all requested combinations and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("comparison.json"))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[])
    options = parser.parse_args()
    outcome: dict = {"rounds": options.rounds, "images": options.images, "nodes": NODES, "runs": {}}
    if options.out.exists():
        outcome = json.loads(options.out.read_text())
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        subprocess.run([sys.executable, HERE / "prepare.py", work / "digits.npz"], check=True)
        for seed in range(options.seeds):
            for engine in NODES:
                for strategy in STRATEGIES if engine == "simulation" else STRATEGIES[:1]:
                    for rate, arguments in RATES.items():
                        name = f"{engine}; {strategy}; {rate}; {seed}"
                        if name in outcome["runs"] or not set(options.only) <= {engine, strategy, rate}:
                            continue
                        folder = work / name.replace("; ", "-").replace(" ", "-").replace(",", "")
                        settings = {"data": str(work / "digits.npz"), "strategy": strategy, "seed": seed}
                        settings |= {"num-server-rounds": options.rounds, "images": options.images}
                        app = prepared(folder / "app", arguments)
                        found = run(app, folder, settings, NODES[engine], simulated=engine == "simulation")
                        outcome["runs"][name] = found
                        factor = found["stock_bytes"] / (found["uplink_bytes"] + found["downlink_bytes"])
                        wire = f"wire up {found['wire_up']:,}, down {found['wire_down']:,}"
                        print(f"{name}: accuracy {found['accuracy'][-1]:.4f}, {factor:.1f} x less, {wire}", flush=True)
                        options.out.write_text(json.dumps(outcome, indent=1) + "\n")


def prepared(folder: Path, arguments: str) -> Path:
    """Copy the app, and let it compress with these arguments of `Compressed`; unchanged if there are none."""
    shutil.copytree(HERE, folder)
    if arguments:
        subprocess.run(["patch", "-p1", "-s", "-i", "compressed.diff"], cwd=folder, check=True)
        server = folder / "quickstart" / "server_app.py"
        server.write_text(server.read_text().replace("bits_per_parameter=1", arguments))
    return folder


if __name__ == "__main__":
    main()
