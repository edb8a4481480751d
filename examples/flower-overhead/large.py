"""Measure a large model through `Compressed` and the mod: one client and the server in this process, no training.

    PYTHONPATH=. python examples/flower-overhead/large.py --parameters 50000000 --bits 1

The second round counts; the first compiles.
"""

import argparse
import resource
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from klms.flower import Compressed, compress
from tests.flower.in_process import InProcessGrid

ROWS = 4096


def client(seconds: list[float]) -> ClientApp:
    """Return an app that adds noise to the model, and notes when it begins and ends."""
    app = ClientApp(mods=[compress()])

    @app.train()
    def train(message: Message, context: object) -> Message:
        rng = np.random.default_rng(0)
        arrays = {
            name: Array(array.numpy() + rng.standard_normal(array.shape, dtype=np.float32))
            for name, array in message.content["arrays"].items()
        }
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
        seconds.append(time.perf_counter())
        return Message(RecordDict(content), reply_to=message)

    return app


def main() -> None:
    """Print seconds and memory of a round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=50_000_000)
    parser.add_argument("--bits", type=float, default=1.0)
    options = parser.parse_args()
    columns = options.parameters // (10 * ROWS)
    start = ArrayRecord({f"layer{n}": Array(np.zeros((ROWS, columns), dtype=np.float32)) for n in range(10)})
    size = 10 * ROWS * columns
    trained: list[float] = []
    ended: list[float] = []
    strategy = Compressed(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1), bits_per_parameter=options.bits
    )
    inside = strategy.aggregate_train

    def aggregate(*arguments: object) -> object:
        outcome = inside(*arguments)
        ended.append(time.perf_counter())
        return outcome

    strategy.aggregate_train = aggregate
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = strategy.start(InProcessGrid(client(trained), 1), start, num_rounds=2, timeout=3600)
    sent = result.train_metrics_clientapp[2]["klms-bits-per-parameter"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{size:,} parameters at {sent:.4f} bits: encoding and decoding {ended[1] - trained[1]:.2f} s, "
        f"peak of the process {peak / 2**20:.2f} GiB, {before / 2**20:.2f} GiB of it before; "
        f"one model is {4 * size / 2**30:.2f} GiB"
    )


if __name__ == "__main__":
    main()
