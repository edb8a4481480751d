"""Compare the stock job with the same job after `compressed.diff`: accuracy, and bytes at the filters.

    python compare.py --out comparison.json

The bytes are those that klms counts in the server's log; a stock job sends four bytes per parameter. A run that is in
the file already is not repeated.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from client import evaluate, images_of
from model import SimpleNetwork
from torch.utils.data import DataLoader, TensorDataset

HERE = Path(__file__).parent
CLIENTS = 3
RATES = {
    "stock": "",
    "default": "quality=1",
    "1 bit": "bits_per_parameter=1",
    "0.1 bits": "bits_per_parameter=0.1",
}
"""Arguments of `compress`."""
LINE = re.compile(r"klms: ([\d,]+) bytes up, ([\d,]+) bytes down")


def run(folder: Path, arguments: str, options: list[str]) -> dict:
    """Run a copy of the job in the simulator."""
    shutil.copytree(HERE, folder)
    if arguments:
        subprocess.run(["patch", "-p1", "-s", "-i", "compressed.diff"], cwd=folder, check=True)
        job = folder / "job.py"
        job.write_text(job.read_text().replace("bits_per_parameter=1", arguments))
    command = [sys.executable, "job.py", "--workspace", str(folder / "workspace"), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    model = next(folder.rglob("FL_global_model.pt"))
    counted = LINE.search(done.stdout + done.stderr)
    return {"model": model, "bytes": [int(n.replace(",", "")) for n in counted.groups()] if counted else []}


def accuracy_of(file: Path, data: Path) -> float:
    """Return the accuracy of the model that the server saved, on the test images."""
    network = SimpleNetwork()
    network.load_state_dict(torch.load(file, weights_only=True)["model"])
    with np.load(data) as arrays:
        return evaluate(network, DataLoader(TensorDataset(*images_of(arrays, "test")), batch_size=500))


def main() -> None:
    """Run all combinations and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("comparison.json"))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], choices=RATES)
    options = parser.parse_args()
    outcome = json.loads(options.out.read_text()) if options.out.exists() else {}
    size = sum(parameter.numel() for parameter in SimpleNetwork().parameters())
    stock = 4 * size * CLIENTS * options.rounds
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "digits.npz"
        subprocess.run([sys.executable, HERE / "prepare.py", data], check=True)
        for seed in range(options.seeds):
            for rate in options.only or RATES:
                for transfer in ("full", "diff"):
                    name = f"{rate}; {transfer}; {seed}"
                    if name in outcome:
                        continue
                    asked = ["--data", str(data), "--images", str(options.images), "--seed", str(seed)]
                    asked += ["--num_rounds", str(options.rounds), *(["--diff"] if transfer == "diff" else [])]
                    folder = Path(temporary) / name.replace("; ", "-").replace(" ", "-")
                    found = run(folder, RATES[rate], asked)
                    up, down = found["bytes"] or (stock, stock)
                    accuracy = accuracy_of(found["model"], data)
                    outcome[name] = {"accuracy": accuracy, "up": up, "down": down, "stock": stock}
                    print(f"{name}: accuracy {accuracy:.4f}, {up:,} bytes up, {down:,} down", flush=True)
                    options.out.write_text(json.dumps(outcome, indent=1) + "\n")


if __name__ == "__main__":
    main()
