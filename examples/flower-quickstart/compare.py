"""Compare the stock app with the same app after `compressed.diff`: accuracy, and bytes in both directions.

    python compare.py --out comparison.json

Six strategies run at up to five rates and with three seeds, with ten clients in one process. The first seed also runs
in Flower's simulation, and, for FedAvg, on a SuperLink with three SuperNodes. All of this takes some hours on two
cores. A run that is in the file already is not repeated. `--only` restricts what is run:
`--only process --only fedavg --seeds 1`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from klms.flower.deployment import Deployment

HERE = Path(__file__).parent
RATES = {
    "stock": "",
    "default": "quality=1",
    "1 bit": "bits_per_parameter=1",
    "0.3 bits": "bits_per_parameter=0.3",
    "0.1 up, 0.3 down": "up=0.1, down=0.3",
    "0.1 bits": "bits_per_parameter=0.1",
}
"""Arguments of `Compressed`; `default` is the quality that it holds without arguments."""
ALL = tuple(RATES)
MOST = tuple(rate for rate in RATES if rate != "0.3 bits")
STRATEGIES = {
    "fedavg": ALL,
    "fedadam": ALL,
    "fedyogi": MOST,
    "fedprox": MOST,
    "fedmedian": ALL,
    "krum": ("stock", "default", "1 bit"),
}
"""Rates at which each strategy is run."""
NODES = {"process": 10, "simulation": 10, "deployment": 3}
PARAMETERS = 44_426


def deployed(app: Path, folder: Path, settings: dict, nodes: int, *, simulated: bool) -> tuple[int, int]:
    """Run an app on Flower, and return the bytes on the wire, up and down."""
    with Deployment(folder, nodes, simulated=simulated) as deployment:
        before = deployment.wire()
        number = deployment.submit(app, settings)
        status = deployment.wait(number, timeout=3600)
        wire = deployment.wire() - before
        if status != "finished:completed":
            raise SystemExit(f"{status}: {deployment.why(number)}\n{deployment.log('superlink')[-2000:]}")
    return wire.up, wire.down


def run(engine: str, app: Path, folder: Path, settings: dict) -> dict:
    """Run an app once; return its accuracies and bytes."""
    nodes, results, wire = NODES[engine], folder / "results.json", (0, 0)
    settings = {**settings, "results": str(results)}
    if engine == "process":
        command = [sys.executable, HERE / "one_process.py", app, str(nodes), json.dumps(settings)]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}  # `one_process.py` uses a grid of the tests
        subprocess.run(command, check=True, capture_output=True, env=environment)
    else:
        wire = deployed(app, folder, settings, nodes, simulated=engine == "simulation")
    history = json.loads(results.read_text())
    rounds = list(history["train"].values())
    stock = 4 * PARAMETERS * nodes * len(rounds)
    return {
        "accuracy": [record["accuracy"] for record in history["evaluate"].values()],
        "uplink_bytes": sum(record.get("klms-uplink-bytes", stock / len(rounds)) for record in rounds),
        "downlink_bytes": sum(record.get("klms-downlink-bytes", stock / len(rounds)) for record in rounds),
        "stock_bytes": 2 * stock,
        "wire_up": wire[0],
        "wire_down": wire[1],
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
            for engine in NODES if seed == 0 else ["process"]:
                for strategy in ["fedavg"] if engine == "deployment" else STRATEGIES:
                    for rate in STRATEGIES[strategy]:
                        name = f"{engine}; {strategy}; {rate}; {seed}"
                        if name in outcome["runs"] or not set(options.only) <= {engine, strategy, rate}:
                            continue
                        folder = work / name.replace("; ", "-").replace(" ", "-").replace(",", "")
                        settings = {"data": str(work / "digits.npz"), "strategy": strategy, "seed": seed}
                        settings |= {"num-server-rounds": options.rounds, "images": options.images}
                        app = prepared(folder / "app", RATES[rate])
                        found = run(engine, app, folder, settings)
                        outcome["runs"][name] = found
                        factor = found["stock_bytes"] / (found["uplink_bytes"] + found["downlink_bytes"])
                        wire = f"wire up {found['wire_up']:,}, down {found['wire_down']:,}"
                        print(f"{name}: accuracy {found['accuracy'][-1]:.4f}, {factor:.1f} x less, {wire}", flush=True)
                        options.out.write_text(json.dumps(outcome, indent=1) + "\n")


def prepared(folder: Path, arguments: str) -> Path:
    """Copy the app, and make it compress with these arguments of `Compressed`; without arguments, change nothing."""
    shutil.copytree(HERE, folder)
    if arguments:
        subprocess.run(["patch", "-p1", "-s", "-i", "compressed.diff"], cwd=folder, check=True)
        server = folder / "quickstart" / "server_app.py"
        server.write_text(server.read_text().replace("bits_per_parameter=1", arguments))
    return folder


if __name__ == "__main__":
    main()
