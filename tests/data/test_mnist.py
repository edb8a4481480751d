"""MNIST and its relatives from official files: every file name, every byte promised by IDX, EMNIST upright."""

import gzip
import importlib.util
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from klms.data import mnist
from klms.data.mnist import decode_idx, read_idx
from klms.errors import DataError
from tests.data import files

EMNIST = tuple(
    f"emnist-balanced-{half}-{what}-ubyte" for half in ("train", "test") for what in ("images-idx3", "labels-idx1")
)
DOTTED = tuple(name.replace("-idx", ".idx") for name in files.MNIST_FILES)


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)))
def test_what_was_written_is_read(array: files.Bytes) -> None:
    assert np.array_equal(decode_idx(files.idx(array), "x"), array)


@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=3, max_side=3)), st.data())
def test_a_changed_byte_is_other_data_or_a_data_error(array: files.Bytes, draw: st.DataObject) -> None:
    data = bytearray(files.idx(array))
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        found = decode_idx(bytes(data), "x")
    except DataError:
        return
    assert files.idx(found) == data


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    "change", [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b[:9], lambda b: b"", lambda b: b[1:]]
)
def test_a_file_cut_or_extended_is_named(tmp_path: Path, suffix: str, change) -> None:
    data = change(files.idx(files.grey(3)))
    path = tmp_path / f"train-images-idx3-ubyte{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(DataError, match=path.name):
        read_idx(path)


@pytest.mark.parametrize("cut", [1, 5, 9, 100])
def test_a_truncated_gzip_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(files.idx(files.grey(3)))[:-cut])
    with pytest.raises(DataError, match=path.name):
        read_idx(path)


def test_a_flipped_bit_inside_a_gzip_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    data = bytearray(gzip.compress(files.idx(files.grey(3))))
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=path.name):
        read_idx(path)


@pytest.mark.parametrize("shape", [b"\xff" * 4, b"\x01\0\0\0"])
def test_a_header_that_promises_too_much_is_not_believed(tmp_path: Path, shape: bytes) -> None:
    path = tmp_path / "huge.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + shape))
    with pytest.raises(DataError, match=r"huge\.gz: its header promises .* (no data set has|more than it can hold)"):
        read_idx(path)


def test_a_well_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(files.idx(np.zeros(1 << 22, np.uint8))))
    assert read_idx(path).size == 1 << 22


@pytest.mark.parametrize("names", [files.MNIST_FILES, DOTTED])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", [".", "raw", "MNIST/raw"])
def test_mnist_is_found_in_every_spelling(tmp_path: Path, names: tuple[str, ...], suffix: str, place: str) -> None:
    train_x, train_y, test_x, test_y = files.idx_folder(tmp_path / place, names, suffix)
    data = mnist.from_folder("mnist", "MNIST", tmp_path)
    assert np.array_equal(data.train_x[:, 0], train_x)
    assert np.array_equal(data.test_x[:, 0], test_x)
    assert data.train_y.tolist() == train_y.tolist()
    assert data.test_y.tolist() == test_y.tolist()
    assert (data.train_x.dtype, data.train_y.dtype, data.classes, data.kind) == (np.uint8, np.int64, 10, "image")


def test_fashion_mnist_has_a_folder_of_its_own(tmp_path: Path) -> None:
    files.idx_folder(tmp_path / "MNIST" / "raw")
    with pytest.raises(DataError, match="train-images-idx3-ubyte"):
        mnist.from_folder("fashion-mnist", "FashionMNIST", tmp_path)
    files.idx_folder(tmp_path / "FashionMNIST" / "raw")
    assert mnist.from_folder("fashion-mnist", "FashionMNIST", tmp_path).name == "fashion-mnist"


def test_a_missing_file_is_asked_for(tmp_path: Path) -> None:
    files.idx_folder(tmp_path)
    (tmp_path / files.MNIST_FILES[3]).unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        mnist.from_folder("mnist", "MNIST", tmp_path)


def test_labels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    files.idx_folder(tmp_path)
    (tmp_path / files.MNIST_FILES[1]).write_bytes(files.idx(files.labels(5)))
    with pytest.raises(DataError, match="6 training images"):
        mnist.from_folder("mnist", "MNIST", tmp_path)
    (tmp_path / files.MNIST_FILES[1]).write_bytes(files.idx(np.full(6, 10, np.uint8)))
    with pytest.raises(DataError, match=r"\[0, 10\)"):
        mnist.from_folder("mnist", "MNIST", tmp_path)


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


def write_floating_point(path: Path, **test: np.ndarray) -> None:
    """Write a file whose numbers are in floating point, with another `test` half where it is given."""
    half = {"images": files.grey(3).reshape(-1, 784).astype(float), "labels": np.array([[0.0, 46.0, 5.0]]).T}
    half["writers"] = np.array([[1.0, 2.0, 3.0]]).T
    scipy.io.savemat(path, {"dataset": {"train": half, "test": half | test}})


def test_whole_numbers_of_a_matlab_file_may_be_in_floating_point(tmp_path: Path) -> None:
    write_floating_point(tmp_path / "emnist-balanced.mat")
    assert mnist.emnist_from_folder(tmp_path).train_y.tolist() == [0, 46, 5]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"labels": np.array([[0, 46.5, 5]]).T}, r"emnist-balanced\.mat"),
        ({"writers": np.array([[1.5, 2, 3]]).T}, r"emnist-balanced\.mat"),
        ({"writers": np.array([["a", "b", "c"]]).T}, r"emnist-balanced\.mat"),
        ({"images": files.grey(3).reshape(-1, 784) + 0.5}, "values are not uint8"),
    ],
)
def test_no_value_of_a_matlab_file_is_rounded(tmp_path: Path, bad: dict[str, np.ndarray], message: str) -> None:
    write_floating_point(tmp_path / "emnist-balanced.mat", **bad)
    with pytest.raises(DataError, match=message):
        mnist.emnist_from_folder(tmp_path)


def test_a_matlab_file_that_crashes_its_reader_does_not_crash_ours(tmp_path: Path) -> None:
    """A megabyte of nested cells overflows the stack of SciPy's reader."""

    def element(kind: int, data: bytes) -> bytes:
        return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)

    parts = [(6, struct.pack("<II", 1, 0)), (5, struct.pack("<ii", 1, 1)), (1, b"")]  # class, shape, name
    cell = b"".join(element(*part) for part in parts)
    depth = 20_000
    sizes = [(depth - level) * (8 + len(cell)) - 8 for level in range(depth)]
    nested = b"".join(struct.pack("<II", 14, size + 8) + cell for size in sizes) + element(14, b"")
    named = cell[:-8] + element(1, b"dataset")
    head = b"MATLAB 5.0 MAT-file".ljust(124, b"\0") + b"\0\1IM"
    path = tmp_path / "emnist-balanced.mat"
    path.write_bytes(head + struct.pack("<II", 14, len(named) + len(nested)) + named + nested)
    with pytest.raises(DataError, match=r"emnist-balanced\.mat.*matlab"):
        mnist.emnist_from_folder(tmp_path)


def test_without_scipy_the_package_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_matlab(tmp_path / "emnist-balanced.mat", files.grey(3))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install scipy"):
        mnist.emnist_from_folder(tmp_path)


def test_a_shape_that_numpy_cannot_make_is_refused_even_if_it_is_empty():
    header = bytes([0, 0, 8, 4]) + b"".join(n.to_bytes(4, "big") for n in (1 << 31, 1 << 31, 1 << 31, 0))
    with pytest.raises(DataError, match="no data set has more"):
        decode_idx(header, "x")
    assert decode_idx(bytes([0, 0, 8, 1, 0, 0, 0, 0]), "x").shape == (0,)
