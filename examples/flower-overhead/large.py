"""Measure a large model through Flower, without klms and with it: time and memory of a client and a server together.

    PYTHONPATH=. python examples/flower-overhead/large.py --parameters 50000000 --bits 1

One client and the server, in one process without a network, and no training. Every app runs in a process of its own;
the last round counts, the first compiles. `--down` sets the bits of the model, 32 for the model itself.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import deque

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from klms.flower import Compressed, compress
from tests.flower.in_process import InProcessGrid

ROWS = 4096
ROUNDS = 3


def client(mods: list, trained: list[float]) -> ClientApp:
    """Return an app that adds noise to the model, and notes when it has done so."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: object) -> Message:
        rng = np.random.default_rng(0)
        arrays = {
            name: Array(array.numpy() + rng.standard_normal(array.shape, dtype=np.float32))
            for name, array in message.content["arrays"].items()
        }
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
        trained.append(time.perf_counter())
        return Message(RecordDict(content), reply_to=message)

    return app


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Run one app in this process."""
    columns = options.parameters // (10 * ROWS)
    rng = np.random.default_rng(1)
    names = [f"layer{n}" for n in range(10)]
    start = ArrayRecord({name: Array(rng.standard_normal((ROWS, columns), dtype=np.float32)) for name in names})
    trained: list[float] = []
    ended: list[float] = []
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1)
    if options.app == "compressed":
        strategy = Compressed(strategy, up=options.bits, down=options.down or options.bits)
    inside = strategy.aggregate_train

    def aggregate(*arguments: object) -> object:
        outcome = inside(*arguments)
        ended.append(time.perf_counter())
        return outcome

    strategy.aggregate_train = aggregate
    grid = InProcessGrid(client([compress()] if options.app == "compressed" else [], trained), 1)
    grid.sent = grid.received = deque(maxlen=0)  # it would keep every message
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = strategy.start(grid, start, num_rounds=ROUNDS, timeout=3600)
    metrics = result.train_metrics_clientapp[ROUNDS]
    return {
        "parameters": 10 * ROWS * columns,
        "bits": metrics.get("klms-bits-per-parameter", 32),
        "down": 8 * metrics.get("klms-downlink-bytes", 40 * ROWS * columns) / (10 * ROWS * columns),
        "seconds": ended[-1] - trained[-1],
        "before": before / 2**20,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    """Print seconds and memory of a round, for both apps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=50_000_000)
    parser.add_argument("--bits", type=float, default=1.0)
    parser.add_argument("--down", type=float)
    parser.add_argument("--app", choices=("stock", "compressed"), help="measure this one alone, and print it as JSON")
    options = parser.parse_args()
    if options.app:
        print(json.dumps(measure(options)))
        return
    found = {}
    for app in ("stock", "compressed"):
        done = subprocess.run([sys.executable, *sys.argv, "--app", app], check=True, capture_output=True, text=True)
        found[app] = run = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{app}: {run['parameters']:,} parameters, {run['bits']:.3f} bits up and {run['down']:.3f} down; from the "
            f"trained model to the aggregated one {run['seconds']:.2f} s; peak of the process {run['peak']:.2f} GiB, "
            f"{run['before']:.2f} GiB of it before; one model is {4 * run['parameters'] / 2**30:.2f} GiB"
        )
    print(f"peak with klms: {found['compressed']['peak'] / found['stock']['peak']:.2f} times the stock app's")


if __name__ == "__main__":
    main()
