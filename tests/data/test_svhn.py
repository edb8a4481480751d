"""SVHN from small files in the format of the official ones."""

from pathlib import Path

import numpy as np
import pytest

from klms.data import svhn
from klms.errors import DataError

scipy = pytest.importorskip("scipy.io")


def write(path: Path, x: np.ndarray, y: list[int]) -> None:
    scipy.savemat(path, {"X": x, "y": np.array([y], np.uint8).T}, do_compression=True)


def photographs(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (32, 32, 3, count), dtype=np.uint8)


def test_images_stand_upright_and_the_tenth_class_is_the_digit_0(tmp_path: Path) -> None:
    train, test = photographs(4), photographs(2)
    write(tmp_path / "train_32x32.mat", train, [1, 10, 9, 2])
    write(tmp_path / "test_32x32.mat", test, [10, 5])
    data = svhn.from_folder(tmp_path)
    assert (data.name, data.classes, data.train_owner) == ("svhn", 10, None)
    assert data.train_x.shape == (4, 3, 32, 32)
    assert data.train_x[2, 1, 5, 7] == train[5, 7, 1, 2]
    assert np.array_equal(data.test_x, np.moveaxis(test, (3, 2), (0, 1)))
    assert data.train_y.tolist() == [1, 0, 9, 2]
    assert data.test_y.tolist() == [0, 5]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (photographs(3)[:28], [1, 2, 3], r"train_32x32\.mat does not hold images of 32 x 32"),
        (photographs(3)[..., 0], [1, 2, 3], r"train_32x32\.mat does not hold images of 32 x 32"),
        (photographs(3) + 0.5, [1, 2, 3], "values are not uint8"),
        (photographs(3), [1, 2], "3 training images, but the labels are"),
        (photographs(3), [1, 2, 11], r"from 1 to 11, but they must be in \[0, 10\)"),
    ],
)
def test_other_images_and_labels_are_refused(tmp_path: Path, x: np.ndarray, y: list[int], message: str) -> None:
    write(tmp_path / "train_32x32.mat", x, y)
    write(tmp_path / "test_32x32.mat", photographs(2), [1, 2])
    with pytest.raises(DataError, match=message):
        svhn.from_folder(tmp_path)


def test_a_file_that_is_missing_damaged_or_of_something_else_is_named(tmp_path: Path) -> None:
    write(tmp_path / "train_32x32.mat", photographs(3), [1, 2, 3])
    with pytest.raises(DataError, match=r"does not hold the files train_32x32\.mat and test_32x32\.mat"):
        svhn.from_folder(tmp_path)
    (tmp_path / "test_32x32.mat").write_bytes((tmp_path / "train_32x32.mat").read_bytes()[:500])
    with pytest.raises(DataError, match=r"test_32x32\.mat"):
        svhn.from_folder(tmp_path)
    scipy.savemat(tmp_path / "test_32x32.mat", {"dataset": np.eye(2)})
    with pytest.raises(DataError, match=r"test_32x32\.mat.*KeyError"):
        svhn.from_folder(tmp_path)
