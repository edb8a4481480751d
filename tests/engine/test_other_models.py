"""CONV6, ResNet-18 and the LSTM through whole rounds: narrow on small files, whole on real data (soak)."""

import numpy as np
import pytest

from klms.engine.federation import Federation
from klms.engine.local import clients_in
from klms.engine.rounds import one_round
from klms.runs.settings import resolve
from tests.data import files
from tests.support.small_data import colours

METHODS = {
    "fedpm-klms": {"optimizer": "adam", "lr": 0.1},
    "qsgd-klms": {"optimizer": "adam", "lr": 0.003, "server_lr": 1.0, "bucket": 256},
    "signsgd-klms": {"optimizer": "adam", "lr": 0.003, "server_lr": 0.01, "scale": 1.0},
}


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


def nll_over_rounds(method: str, given: dict[str, object]) -> tuple[float, float]:
    """On the test data, before the first round and after the last."""
    config = resolve(method, given=given)
    federation = Federation.create(config)
    state = federation.method.init()
    before, _ = federation.method.evaluate(state, federation.test)
    with clients_in(federation, 1) as clients:
        for _ in range(config.rounds):
            result = one_round(federation, config, state, clients)
            assert result.record.bits_per_parameter < 3
            state = result.state
    after, _ = federation.method.evaluate(state, federation.test)
    return before["nll"], after["nll"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_other_models_train(case, method, tmp_path):
    write, given = CASES[case]
    write(tmp_path)
    common = {"clients": 2, "rounds": 4, "epochs": 3, "batch": 10, "bits": 6, "target": 4.0, "data_dir": str(tmp_path)}
    before, after = nll_over_rounds(method, common | given | METHODS[method])
    assert after < before


WHOLE = {
    "conv6 on cifar10": {"data": "cifar10", "model": "conv6", "images": 400, "test_images": 200},
    "resnet18 on cifar100": {"data": "cifar100", "model": "resnet18", "images": 100, "test_images": 40},
    "lstm on chitchat by author": {
        "data": "chitchat",
        "model": "lstm",
        "split": "natural",
        "images": 800,
        "test_images": 200,
    },
}
ONE_ROUND = {
    "fedpm-klms": {"optimizer": "adam", "lr": 0.1, "gain": 1.4142},
    "qsgd-klms": {"optimizer": "adam", "lr": 0.001, "server_lr": 1.0},
    "signsgd-klms": {"optimizer": "adam", "lr": 0.001, "server_lr": 0.001},
}


@pytest.mark.soak
@pytest.mark.parametrize("method", ONE_ROUND)
@pytest.mark.parametrize("case", WHOLE)
def test_whole_models_learn_in_one_round(case, method, tmp_path):
    """Full widths; CIFAR-10 and the chat are the real ones, CIFAR-100 is in its format."""
    given = WHOLE[case] | {"clients": 2, "rounds": 1, "epochs": 1, "batch": 20} | ONE_ROUND[method]
    if given["data"] == "cifar100":
        cifar100(tmp_path)
        given |= {"data_dir": str(tmp_path)}
    before, after = nll_over_rounds(method, given)
    print(f"{case}, {method}: test loss {before:.3f} -> {after:.3f}")
    assert after < before
