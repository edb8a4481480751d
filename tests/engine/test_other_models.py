"""CONV6, ResNet-18 and the LSTM through whole rounds, on small files in the official formats."""

import numpy as np
import pytest

from klms.engine.federation import Federation
from klms.engine.local import clients_in, one_round
from klms.experiments.settings import resolve
from tests.data import files

METHODS = {
    "fedpm-klms": {"optimizer": "adam", "lr": 0.1},
    "qsgd-klms": {"optimizer": "adam", "lr": 0.003, "server_lr": 1.0, "bucket": 256},
    "signsgd-klms": {"optimizer": "adam", "lr": 0.003, "server_lr": 0.01, "scale": 1.0},
}


def colours(n: int, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 3072 bytes, channel by channel, that are bright where the class says."""
    labels = np.arange(n) % classes
    images = rng.integers(0, 60, (n, 3, 32, 32))
    for i, label in enumerate(labels):
        images[i, label % 3, 3 * (label % 10) : 3 * (label % 10) + 4] += 180
    return images.reshape(n, -1).astype(np.uint8), labels.astype(np.uint8)


def cifar10(folder):
    rng = np.random.default_rng(0)
    for name in [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]:
        pixels, labels = colours(20, 10, rng)
        (folder / name).write_bytes(np.column_stack([labels, pixels]).tobytes())


def cifar100(folder):
    rng = np.random.default_rng(0)
    for name, n in (("train.bin", 100), ("test.bin", 40)):
        pixels, labels = colours(n, 20, rng)
        (folder / name).write_bytes(np.column_stack([labels // 5, labels, pixels]).tobytes())


def posts(folder):
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "the", "dog", "run", "far", "away"]
    for half, count in (("train", 12), ("test", 2)):
        (folder / half).mkdir()
        users = {f"user{u}": ([" ".join(words[u % 5 :] * 3)] * 4, [0] * 4) for u in range(count)}
        files.leaf(folder / half / "a.json", users)


CASES = {
    "conv6 on cifar10": (cifar10, {"data": "cifar10", "model": "conv6", "width": 0.125}),
    "resnet18 on cifar100": (cifar100, {"data": "cifar100", "model": "resnet18", "width": 0.0625}),
    "lstm on posts by author": (
        posts,
        {"data": "stackoverflow", "model": "lstm", "width": 0.25, "split": "natural", "vocabulary": 20, "length": 10},
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_other_models_train(case, method, tmp_path):
    write, given = CASES[case]
    write(tmp_path)
    common = {"clients": 2, "rounds": 4, "epochs": 3, "batch": 10, "bits": 6, "target": 4.0, "data_dir": str(tmp_path)}
    config = resolve(method, given=common | given | METHODS[method])
    federation = Federation.create(config)
    state = federation.method.init()
    before, _ = federation.method.evaluate(state, federation.test)
    with clients_in(federation, config, 1) as run:
        for _ in range(config.rounds):
            result = one_round(federation, config, state, run)
            assert result.record["bits_per_parameter"] < 3
            state = result.state
    after, _ = federation.method.evaluate(state, federation.test)
    assert after["nll"] < before["nll"]
