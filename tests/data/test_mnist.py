"""MNIST's kin from a folder: every spelling of the files, EMNIST turned upright, damage named."""

import builtins
import importlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from klms.data import mnist
from klms.errors import DataError
from tests.data import files

EMNIST = tuple(
    f"emnist-balanced-{half}-{what}-ubyte" for half in ("train", "test") for what in ("images-idx3", "labels-idx1")
)
DOTTED = tuple(name.replace("-idx", ".idx") for name in files.MNIST_FILES)


@pytest.mark.parametrize("names", [files.MNIST_FILES, DOTTED])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", [".", "raw", "MNIST/raw"])
def test_mnist_is_found_in_every_spelling(tmp_path: Path, names: tuple[str, ...], suffix: str, place: str) -> None:
    train_x, train_y, test_x, test_y = files.idx_folder(tmp_path / place, names, suffix)
    data = mnist.mnist_from_folder(tmp_path)
    assert np.array_equal(data.train_x[:, 0], train_x)
    assert np.array_equal(data.test_x[:, 0], test_x)
    assert data.train_y.tolist() == train_y.tolist()
    assert data.test_y.tolist() == test_y.tolist()
    assert (data.train_x.dtype, data.train_y.dtype, data.classes, data.kind) == (np.uint8, np.int64, 10, "image")


def test_fashion_mnist_has_a_folder_of_its_own(tmp_path: Path) -> None:
    files.idx_folder(tmp_path / "MNIST" / "raw")
    with pytest.raises(DataError, match="train-images-idx3-ubyte"):
        mnist.fashion_from_folder(tmp_path)
    files.idx_folder(tmp_path / "FashionMNIST" / "raw")
    assert mnist.fashion_from_folder(tmp_path).name == "fashion-mnist"


def test_a_missing_file_is_asked_for(tmp_path: Path) -> None:
    files.idx_folder(tmp_path)
    (tmp_path / files.MNIST_FILES[3]).unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        mnist.mnist_from_folder(tmp_path)


def test_labels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    files.idx_folder(tmp_path)
    (tmp_path / files.MNIST_FILES[1]).write_bytes(files.idx(files.labels(5)))
    with pytest.raises(DataError, match="6 training images"):
        mnist.mnist_from_folder(tmp_path)
    (tmp_path / files.MNIST_FILES[1]).write_bytes(files.idx(np.full(6, 10, np.uint8)))
    with pytest.raises(DataError, match=r"\[0, 10\)"):
        mnist.mnist_from_folder(tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", [".", "gzip"])
def test_emnist_is_turned_upright(tmp_path: Path, suffix: str, place: str) -> None:
    train_x, train_y, *_ = files.idx_folder(tmp_path / place, EMNIST, suffix, classes=47)
    data = mnist.emnist_from_folder(tmp_path)
    assert data.classes == 47
    assert np.array_equal(data.train_x[2, 0], train_x[2].T)
    assert data.train_y.tolist() == train_y.tolist()


def test_emnist_from_matlab_knows_the_writers(tmp_path: Path) -> None:
    stored = files.grey(3)
    write_matlab(tmp_path / "emnist-balanced.mat", stored)
    data = mnist.emnist_from_folder(tmp_path)
    assert np.array_equal(data.train_x[1, 0], stored[1].T)
    assert data.train_y.tolist() == [0, 46, 5]
    assert data.test_y.tolist() == [7]
    assert data.train_owner is not None
    assert data.train_owner.tolist() == [1, 0, 1]
    assert data.test_owner is not None
    assert data.test_owner.tolist() == [2]


def write_matlab(path: Path, stored: files.Bytes) -> None:
    def half(x: files.Bytes, y: list[int], writers: list[int]) -> dict[str, object]:
        return {"images": x.reshape(-1, 784), "labels": np.array([y]).T, "writers": np.array([writers]).T}

    train = half(stored, [0, 46, 5], [907, 31, 907])
    content = {"train": train, "test": half(stored[:1], [7], [2000]), "mapping": np.eye(2)}
    scipy.io.savemat(path, {"dataset": content}, do_compression=True)


def test_a_damaged_matlab_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "emnist-balanced.mat"
    write_matlab(path, files.grey(3))
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:200] + bytes(100) + whole[300:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"emnist-balanced\.mat"):
            mnist.emnist_from_folder(tmp_path)


@pytest.mark.parametrize(
    ("labels", "writers"), [([0, 46.5, 5], [1, 2, 3]), ([0, 46, 5], [1.5, 2, 3]), ([0, 46, 5], ["a", "b", "c"])]
)
def test_no_value_of_a_matlab_file_is_rounded(tmp_path: Path, labels: list[float], writers: list[object]) -> None:
    half = {"images": files.grey(3).reshape(-1, 784).astype(float), "labels": np.array([[0.0, 46.0, 5.0]]).T}
    half["writers"] = np.array([[1.0, 2.0, 3.0]]).T
    path = tmp_path / "emnist-balanced.mat"
    scipy.io.savemat(path, {"dataset": {"train": half, "test": half}})
    assert mnist.emnist_from_folder(tmp_path).train_y.tolist() == [0, 46, 5], "whole numbers in floating point are read"
    bad = half | {"labels": np.array([labels]).T, "writers": np.array([writers]).T}
    scipy.io.savemat(path, {"dataset": {"train": half, "test": bad}})
    with pytest.raises(DataError, match=r"emnist-balanced\.mat"):
        mnist.emnist_from_folder(tmp_path)
    scipy.io.savemat(path, {"dataset": {"train": half, "test": half | {"images": half["images"] + 0.5}}})
    with pytest.raises(DataError, match="values are not uint8"):
        mnist.emnist_from_folder(tmp_path)


def test_without_scipy_the_package_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_matlab(tmp_path / "emnist-balanced.mat", files.grey(3))

    def missing(name: str) -> object:
        raise builtins.ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DataError, match="pip install scipy"):
        mnist.emnist_from_folder(tmp_path)
