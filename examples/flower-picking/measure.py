"""Measure the rate that strategies which pick single updates need to do as well as without compression.

    PYTHONPATH=. python examples/flower-picking/measure.py

There are ten honest clients in this process, two seeds, and two small models: linear regression on features of very
different scales, and a network of one hidden layer on small digits. Averages of many updates reduce the noise of
compression; Krum keeps one update with all of its noise, MultiKrum averages five.
"""

import argparse
import logging

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as strategies

from klms import data
from klms.flower import Compressed, compress
from tests.flower.in_process import InProcessGrid

CLIENTS = 10
IMAGES = 2000
RATES = (1, 2, 3, 4, 6)
STRATEGIES = {
    "FedAvg": {},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 5},
}


class Linear:
    """Linear regression with 1200 features of scales from 0.03 to 1, with steps almost as long as stability allows."""

    rounds = 20

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.x = rng.standard_normal((CLIENTS, 300, 1200)) * np.geomspace(1, 0.03, 1200)
        self.y = self.x @ rng.standard_normal(1200) + 0.1 * rng.standard_normal((CLIENTS, 300))
        self.lr = 1.8 / np.linalg.eigvalsh(self.x[0] @ self.x[0].T / 300)[-1]
        self.start = {"w": np.zeros((1200, 1), dtype=np.float32)}

    def train(self, arrays: dict, client: int) -> dict:
        """Take five steps of gradient descent."""
        w = arrays["w"].astype(np.float64)[:, 0]
        x, y = self.x[client], self.y[client]
        for _ in range(5):
            w = w - self.lr * x.T @ (x @ w - y) / len(y)
        return {"w": w[:, None].astype(np.float32)}

    def score(self, arrays: dict) -> float:
        """Return the squared error on all clients' data, as a share of the error of the first model."""
        off = self.x @ arrays["w"][:, 0] - self.y
        return float(np.mean(off**2) / np.mean(self.y**2))


class Network:
    """A network with one hidden layer of 64 units on MNIST at 7x7 pixels, with 200 images per client."""

    rounds = 20

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        digits = data.load("mnist")
        order = rng.permutation(len(digits.train_y))[: IMAGES + 2000]
        x = digits.train_x[order].reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)).reshape(-1, 49)
        x, y = (x / x.max()).astype(np.float32), np.eye(10, dtype=np.float32)[digits.train_y[order]]
        self.x, self.y, self.test_x, self.test_y = x[:IMAGES], y[:IMAGES], x[IMAGES:], y[IMAGES:]
        shapes = {"a": (49, 64), "a.bias": (64,), "b": (64, 10), "b.bias": (10,)}
        self.start = {name: (0.1 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}

    def train(self, arrays: dict, client: int) -> dict:
        """Take an epoch of gradient descent in batches of ten."""
        a, ab, b, bb = (array.copy() for array in arrays.values())
        for batch in np.split(np.arange(client, IMAGES, CLIENTS), 20):
            x, y = self.x[batch], self.y[batch]
            hidden = np.maximum(x @ a + ab, 0)
            scores = hidden @ b + bb
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = (odds / odds.sum(axis=1, keepdims=True) - y) / len(y)
            back = (error @ b.T) * (hidden > 0)
            b, bb, a, ab = (
                b - 0.5 * hidden.T @ error,
                bb - 0.5 * error.sum(axis=0),
                a - 0.5 * x.T @ back,
                ab - 0.5 * back.sum(axis=0),
            )
        return dict(zip(arrays, (a, ab, b, bb), strict=True))

    def score(self, arrays: dict) -> float:
        """Return the accuracy on images that no client trained on."""
        a, ab, b, bb = arrays.values()
        found = (np.maximum(self.test_x @ a + ab, 0) @ b + bb).argmax(axis=1)
        return float(np.mean(found == self.test_y.argmax(axis=1)))


def run(task: Linear | Network, name: str, bits: float | None, seed: int) -> float:
    """Return the score of the last model; without `bits`, the score of the stock app."""
    app = ClientApp(mods=[compress(seed=seed)] if bits else [])

    @app.train()
    def train(message: Message, context: object) -> Message:
        received = {key: array.numpy() for key, array in message.content["arrays"].items()}
        new = task.train(received, context.node_config["partition-id"])
        arrays = ArrayRecord({key: Array(array) for key, array in new.items()})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    strategy = getattr(strategies, name)(fraction_evaluate=0.0, **STRATEGIES[name])
    strategy = Compressed(strategy, bits_per_parameter=bits, seed=seed) if bits else strategy
    start = ArrayRecord({key: Array(array) for key, array in task.start.items()})
    result = strategy.start(InProcessGrid(app, CLIENTS), start, num_rounds=task.rounds, timeout=60)
    return task.score({key: array.numpy() for key, array in result.arrays.items()})


def main() -> None:
    """Print the mean scores of all strategies at all rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for kind, what in ((Linear, "error"), (Network, "accuracy")):
        tasks = [kind(seed) for seed in range(options.seeds)]
        print(f"| {kind.__name__}: {what} | stock | " + " | ".join(f"{rate:g} bits" for rate in RATES) + " |")
        print("| --- " * (len(RATES) + 2) + "|")
        for name in STRATEGIES:
            scores = [
                np.mean([run(task, name, bits, seed) for seed, task in enumerate(tasks)]) for bits in (None, *RATES)
            ]
            print(f"| {name} | " + " | ".join(f"{score:.4f}" for score in scores) + " |", flush=True)


if __name__ == "__main__":
    main()
