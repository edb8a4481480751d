"""Measure a large model through Flower, without klms and with it: processor time and memory of clients and server.

    PYTHONPATH=. python examples/flower-overhead/large.py --parameters 10000000 --clients 3 --bits 1

All clients and the server are in one process without a network, and there is no training. Every app runs in a process
of its own; times are medians over all rounds after the first. The time that klms adds to a round is compared with that
of `klms.compress` and `klms.decompress` alone: each client's update and the model are compressed once, and decompressed
by each receiver. `--down` sets the bits of the model; at 32, the model is sent uncompressed.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections import deque
from itertools import pairwise

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import klms
from klms.flower import Compressed, compress
from tests.flower.in_process import InProcessGrid

ROWS = 1000
LAYERS = 10
ROUNDS = 8
STEP = 0.1
"""Size of an update relative to the size of the weights."""


class Timed(FedAvg):
    """FedAvg that records the processor time at the start of every round."""

    def __init__(self, clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=clients, min_train_nodes=clients)
        self.began: list[float] = []

    def configure_train(self, *arguments):
        """Record the time."""
        self.began.append(time.process_time())
        return super().configure_train(*arguments)


def arrays(options: argparse.Namespace, seed: int) -> dict[str, np.ndarray]:
    """Return arrays of normal draws with the requested number of parameters in total."""
    rng = np.random.default_rng(seed)
    shape = (ROWS, options.parameters // (LAYERS * ROWS))
    return {f"layer{n}": rng.standard_normal(shape, dtype=np.float32) for n in range(LAYERS)}


def client(options: argparse.Namespace, mods: list) -> ClientApp:
    """Return an app that adds noise of its own to the model."""
    app = ClientApp(mods=mods)
    updates = {node: arrays(options, node) for node in range(1, options.clients + 1)}

    @app.train()
    def train(message: Message, context) -> Message:
        update = updates[context.node_id]
        trained = {n: Array(a.numpy() + np.float32(STEP) * update[n]) for n, a in message.content["arrays"].items()}
        content = {"arrays": ArrayRecord(trained), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return app


def run_app(options: argparse.Namespace) -> dict[str, float]:
    """Run one app in this process."""
    start = ArrayRecord({name: Array(array) for name, array in arrays(options, 0).items()})
    inner = Timed(options.clients)
    compressed = options.app == "compressed"
    strategy = Compressed(inner, up=options.bits, down=options.down or options.bits) if compressed else inner
    grid = InProcessGrid(client(options, [compress()] if compressed else []), options.clients)
    grid.sent = grid.received = deque(maxlen=0)  # otherwise, the grid would keep every message
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = strategy.start(grid, start, num_rounds=ROUNDS, timeout=3600)
    metrics = result.train_metrics_clientapp[ROUNDS]
    return {
        "bits": metrics.get("klms-bits-per-parameter", 32),
        "seconds": statistics.median(after - before for before, after in list(pairwise(inner.began))[1:]),
        "before": before / 2**20,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def run_codec(options: argparse.Namespace) -> dict[str, float]:
    """Compress and decompress the messages of a round, without Flower; the first pass compiles the kernels."""
    seconds: list[float] = []
    for number in range(2):
        for sender in range(options.clients + 1):  # the last one is the server
            key = klms.SharedKey(1, number, sender)
            bits = options.bits if sender < options.clients else min(options.down or options.bits, 8)
            update = arrays(options, sender)
            began = time.process_time()
            message = klms.compress(update, bits, key=key)
            for _ in range(1 if sender < options.clients else options.clients):
                klms.decompress(message, key=key)
            seconds.append(time.process_time() - began)
    return {"seconds": sum(seconds[options.clients + 1 :])}


def main() -> None:
    """Print seconds and memory of a round, for both apps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--bits", type=float, default=1.0)
    parser.add_argument("--down", type=float)
    parser.add_argument("--app", choices=("stock", "compressed", "codec"), help="run this alone, and print JSON")
    options = parser.parse_args()
    if options.app:
        print(json.dumps(run_codec(options) if options.app == "codec" else run_app(options)))
        return
    found = {}
    for app in ("stock", "compressed", "codec"):
        done = subprocess.run([sys.executable, *sys.argv, "--app", app], check=True, capture_output=True, text=True)
        found[app] = json.loads(done.stdout.splitlines()[-1])
    stock, ours, codec = found["stock"], found["compressed"], found["codec"]
    share = (ours["seconds"] - stock["seconds"]) / codec["seconds"]
    print(f"{options.parameters:,} parameters, {options.clients} clients, {ours['bits']:.3f} bits; processor seconds:")
    print(f"a round takes {stock['seconds']:.2f} without klms and {ours['seconds']:.2f} with it")
    print(f"compress and decompress alone take {codec['seconds']:.2f}: klms adds {share:.2f} times that")
    print(
        f"peak of the process {stock['peak']:.2f} GiB without klms ({stock['before']:.2f} before it starts), "
        f"{ours['peak']:.2f} with it; a model is {4 * options.parameters / 2**30:.2f} GiB"
    )


if __name__ == "__main__":
    main()
