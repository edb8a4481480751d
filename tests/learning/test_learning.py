import numpy as np
import pytest
import torch

from klms.errors import InvalidArgument
from klms.learning import models
from klms.learning.examples import Examples, Schedule
from klms.learning.learner import Learner, classification_metrics
from klms.learning.network import Network, pick_device
from klms.methods import entry
from klms.runs.settings import resolve

torch.set_num_threads(1)


def images(n: int = 120, channels: int = 1, side: int = 28, classes: int = 10) -> Examples:
    """Images whose class is where they are bright: learnable in a few steps."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, n)
    x = rng.integers(0, 60, (n, channels, side, side)).astype(np.uint8)
    for i, label in enumerate(y):
        x[i, :, 2 * (label % 10) : 2 * (label % 10) + 4, 4:24] += 180
    return Examples(x, y.astype(np.int64))


def texts(n: int = 64, length: int = 8, words: int = 50) -> Examples:
    rng = np.random.default_rng(0)
    tokens = (rng.integers(2, words, (n, 1)) + np.arange(length + 1)) % (words - 2) + 2
    return Examples(tokens[:, :-1].copy(), tokens[:, 1:].copy())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("lenet", (1, 28, 28), 10, 431_080),
        ("conv4", (1, 28, 28), 10, 1_933_258),
        ("conv6", (3, 32, 32), 10, 2_262_602),
        ("resnet18", (3, 32, 32), 100, 11_218_340),
    ],
)
def test_the_papers_models(name, shape, classes, parameters):
    network = Network.create(name, shape, classes, 1.0)
    x = torch.zeros(2, *shape)
    assert network(network.tensor(network.initial(0)), x).shape == (2, classes)
    assert network.layout.d == parameters
    assert not list(network.module.buffers())


CASES = [("lenet", images(), 1.0), ("conv6", images(48, 3, 32), 0.25), ("resnet18", images(48, 3, 32, 20), 0.125)]
CASES += [("lstm", texts(), 0.25)]


def learner_for(name: str, data: Examples, width: float) -> Learner:
    return Learner(Network.create(name, data.x.shape[1:], 50 if name == "lstm" else 20, width))


def no_penalty(parameters: torch.Tensor, start: torch.Tensor) -> float:
    return 0.0


def loss(learner: Learner, parameters: np.ndarray, data: Examples) -> float:
    return learner.metrics(learner.predict(parameters, data), data)["nll"]


@pytest.mark.parametrize(("name", "data", "width"), CASES, ids=[case[0] for case in CASES])
def test_training_lowers_the_loss(name, data, width):
    learner = learner_for(name, data, width)
    start = learner.network.initial(1)
    after, seen = learner.train(start, data, Schedule(6, 16, 0.01, "adam"), np.random.default_rng(0), no_penalty)
    assert loss(learner, after, data) < 0.8 * loss(learner, start, data)
    assert loss(learner, after, data) < seen < 1.2 * loss(learner, start, data)


@pytest.mark.parametrize(("name", "data", "width"), CASES, ids=[case[0] for case in CASES])
def test_training_masks_lowers_the_loss(name, data, width):
    learner = learner_for(name, data, width)
    frozen = learner.network.signed_constants(1)
    theta = np.full(learner.layout.d, 0.5, dtype=np.float32)
    phi, _ = learner.train_mask(
        frozen, theta, data, Schedule(10, 16, 0.1, "adam"), np.random.default_rng(0), no_penalty
    )
    assert phi.min() > 0
    assert phi.max() < 1
    rng = np.random.default_rng(1)
    before, after = (
        np.mean([loss(learner, frozen * (rng.random(p.size) < p).astype(np.float32), data) for _ in range(3)])
        for p in (theta, phi)
    )
    assert after < before


def test_training_is_a_function_of_its_arguments():
    data = images(40)
    learner = learner_for("lenet", data, 0.3)
    start = learner.network.initial(1)
    state = torch.random.get_rng_state()
    runs = [
        learner.train(start, data, Schedule(1, 16, 0.05, "momentum"), np.random.default_rng(3), no_penalty)
        for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0].vector, runs[1].vector)
    half = np.full(start.size, 0.5, np.float32)
    masks = [
        learner.train_mask(start, half, data, Schedule(1, 16, 0.1, "adam"), rng, no_penalty)
        for rng in (np.random.default_rng(3), np.random.default_rng(3))
    ]
    np.testing.assert_array_equal(masks[0].vector, masks[1].vector)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_potentials_gradient_scales_with_the_data():
    data = images(40)
    learner = learner_for("lenet", data, 0.2)
    point = learner.network.initial(1)
    full, _ = learner.potential_gradient(point, data, 40, 0.0, np.random.default_rng(0))
    prior, _ = learner.potential_gradient(point, data, 40, 2.0, np.random.default_rng(0))
    np.testing.assert_allclose(prior - full, 2.0 * point, atol=2e-2, rtol=1e-2)
    parts = [learner.potential_gradient(point, data, 10, 0.0, np.random.default_rng(n)).vector for n in range(60)]
    mean = np.mean(parts, axis=0)
    assert mean @ full / np.linalg.norm(mean) / np.linalg.norm(full) > 0.97
    assert np.linalg.norm(mean) == pytest.approx(np.linalg.norm(full), rel=0.1)


def test_metrics():
    table = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    got = classification_metrics(table, np.array([0, 1, 1, 1]))
    assert got["accuracy"] == 0.75
    assert got["nll"] == pytest.approx(-np.log([0.9, 0.8, 0.4, 0.7]).mean())
    assert got["ece"] == pytest.approx((0.1 + 0.2 + 0.6 + 0.3) / 4)


def test_padding_does_not_count():
    data = texts(8)
    padded = Examples(data.x, np.where(np.arange(8) < 4, data.y, 0))
    learner = learner_for("lstm", data, 0.25)
    table = learner.predict(learner.network.initial(0), padded)
    assert table.shape == (8 * 4, 50)


def test_unknown_devices_models_and_optimizers_are_refused():
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(InvalidArgument, match="device"):
        pick_device("abacus")
    with pytest.raises(InvalidArgument, match="model"):
        Network.create("alexnet", (1, 28, 28), 10, 1.0)
    with pytest.raises(InvalidArgument, match="optimizer"):
        resolve("fedavg", given={"optimizer": "adagrad"})


def test_the_names_that_are_checked_without_torch_are_those_of_the_models():
    assert tuple(models.MODELS) == entry.MODELS
