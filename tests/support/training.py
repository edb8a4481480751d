"""Methods, data and rounds that are small enough for tests."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch

from klms.compressors.layout import Layout
from klms.learning.examples import Examples
from klms.learning.learner import Learner
from klms.learning.network import Network
from klms.methods.base import Method, Outcome, Upload
from klms.methods.entry import Setup
from klms.methods.state import State
from klms.methods.table import METHODS
from klms.runs.settings import resolve

torch.set_num_threads(1)

SMALL = {
    "clients": 3,
    "width": 0.2,
    "epochs": 1,
    "batch": 16,
    "bits": 6,
    "target": 6.0,
    "bucket": 256,
    "gamma": 1e-4,
    "burn_in": 1,
}


def examples(n: int = 60) -> Examples:
    """Images whose digit is where they are bright: a model learns them in a few steps."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 10
    x = rng.integers(0, 60, (n, 1, 28, 28)).astype(np.uint8)
    for i, label in enumerate(labels):
        x[i, 0, 2 * label : 2 * label + 6, 4:24] += 180
    return Examples(x, labels.astype(np.int64))


def method_of(name: str, **given: object) -> Method:
    """Return a method with a narrow LeNet."""
    config = resolve(name, profile="small", given=SMALL | given)
    network = Network.create("lenet", (1, 28, 28), 10, config.width)
    return METHODS[name].make(Setup(config, Learner(network), threads=1))


def learner_without_model(d: int) -> SimpleNamespace:
    """Return what a method asks of a learner of `d` parameters, as long as nothing is trained."""
    network = SimpleNamespace(initial=lambda seed: np.zeros(d, dtype=np.float32))
    return SimpleNamespace(layout=Layout(("x",), ((d,),)), network=network)


def train_clients(method: Method, state: State, data: Examples, clients: int = 3) -> list[Upload]:
    """Let the clients of the round after `state` train, all on the same data."""
    number = state.round + 1
    return [method.client_update(state, client, data, method.private_rng(number, client)) for client in range(clients)]


def play_round(method: Method, state: State, uploads: Sequence[Upload]) -> Outcome:
    """Do the server's part of a round: decode the uploads, add them up and aggregate."""
    received = method.receive(state)
    for upload in uploads:
        received.add(method.decode(state, upload.client, upload.message), len(upload.message))
    return method.conclude(state, received)
