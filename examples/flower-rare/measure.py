"""Measure the cost of clients that take part rarely: accuracy and traffic of a Flower app, without klms and with it.

    PYTHONPATH=. python examples/flower-rare/measure.py --model cnn

There are 200 clients with 300 images of MNIST each, and 3 % of them take part in a round: half of these have never
taken part before, and the others lack some thirty rounds. Everything runs in one process, without a network.
"""

import argparse
import random

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from klms.data import load
from klms.flower import Compressed, compress
from tests.flower.in_process import InProcessGrid

MODELS = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 32, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1568, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    ),
}


def examples(half: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of zero mean, and their digits."""
    data = load("mnist")
    x, y = (data.train_x, data.train_y) if half == "train" else (data.test_x, data.test_y)
    return (torch.from_numpy(x).float() / 255 - 0.13) / 0.3, torch.from_numpy(y)


def client(options: argparse.Namespace, mods: list) -> ClientApp:
    """Return an app that trains for an epoch."""
    app = ClientApp(mods=mods)
    net = MODELS[options.model]()
    images, labels = examples("train")
    owners = np.random.default_rng(options.seed).permutation(len(labels)).reshape(options.clients, -1)

    @app.train()
    def train(message: Message, context) -> Message:
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        own = owners[context.node_config["partition-id"]]
        for batch in np.array_split(own, len(own) // 20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(own)})}
        return Message(RecordDict(content), reply_to=message)

    return app


def run(options: argparse.Namespace, *, compressed: bool) -> tuple[float, int]:
    """Return the accuracy after all rounds, and the bytes of models and updates."""
    torch.manual_seed(options.seed)
    random.seed(options.seed)  # Flower samples clients with this generator
    net = MODELS[options.model]()
    strategy = FedAvg(fraction_train=options.share, fraction_evaluate=0.0)
    if compressed:
        strategy = Compressed(strategy, bits_per_parameter=options.bits, seed=options.seed)
    grid = InProcessGrid(client(options, [compress(seed=options.seed)] if compressed else []), options.clients)
    result = strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=options.rounds, timeout=3600)
    net.load_state_dict(result.arrays.to_torch_state_dict())
    images, labels = examples("test")
    with torch.no_grad():
        accuracy = float((net(images).argmax(1) == labels).float().mean())
    if compressed:
        return accuracy, strategy.uplink_bytes + strategy.downlink_bytes
    return accuracy, 2 * 4 * sum(p.numel() for p in net.parameters()) * len(grid.sent)


def main() -> None:
    """Print accuracy and traffic of both apps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="cnn")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--share", type=float, default=0.03)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--bits", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    stock, whole = run(options, compressed=False)
    ours, sent = run(options, compressed=True)
    print(
        f"{options.model}, {options.clients} clients, {options.share:.0%} per round, {options.rounds} rounds, "
        f"{options.bits:g} bits, seed {options.seed}: accuracy {stock:.4f} without klms, {ours:.4f} with it; "
        f"{whole:,} bytes and {sent:,}, {whole / sent:.1f} times less"
    )


if __name__ == "__main__":
    main()
