"""Files of NumPy: what `np.save` and `np.savez` write, and what nobody should read."""

import io
import zipfile

import numpy as np
import pytest

from klms.errors import DataError, KLMSError
from klms.tensor_files.formats import open_tensors
from klms.tensor_files.numpy_files import write_npz

ARRAYS = {
    "file": np.arange(12, dtype=">i4").reshape(3, 4),
    "f": np.asfortranarray(np.random.default_rng(0).standard_normal((5, 6))),
    "long": np.ones(3, np.longdouble),
    "scalar": np.array(True),
    "none": np.zeros((0, 3), np.float16),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_file_of_one_array_is_read(name, tmp_path):
    np.save(tmp_path / "x.npy", ARRAYS[name])
    with open_tensors(tmp_path / "x.npy") as opened:
        assert list(opened.sources) == [""]
        source = opened.sources[""]
        assert source.shape == ARRAYS[name].shape
        np.testing.assert_array_equal(source.floats(0, ARRAYS[name].size), ARRAYS[name].astype(np.float32).ravel())


@pytest.mark.parametrize("save", ["ours", "numpy", "compressed"])
def test_an_archive_is_read(save, tmp_path):
    path = tmp_path / "x.npz"
    arrays = {name: array for name, array in ARRAYS.items() if name != "file" or save == "ours"}
    if save == "ours":
        with path.open("wb") as file:
            write_npz(file, arrays)
        with np.load(path, allow_pickle=False) as loaded:
            assert all(np.array_equal(loaded[name], array) for name, array in arrays.items())
    else:
        (np.savez if save == "numpy" else np.savez_compressed)(path, **arrays)
    with open_tensors(path) as opened:
        assert list(opened.sources) == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(opened.sources[name].floats(0, array.size), array.astype("f4").ravel())


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


BAD = {
    "nothing": (b"", "does not begin"),
    "other bytes": (b"x" * 100, "does not begin"),
    "no dictionary": (npy("[]"), "does not begin"),
    "an open string": (npy("{'descr': '"), "does not begin"),
    "deep": (npy("(" * 5000), "does not begin"),
    "an object": (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", bytes(8)), "holds object"),
    "text": (npy("{'descr': '<U2', 'fortran_order': False, 'shape': (1,)}", bytes(8)), "cannot be sent"),
    "complex": (npy("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", bytes(8)), "real and its imaginary"),
    "many": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}", bytes(8)), "another size"),
    "more": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999999,)}", bytes(8)), "does not begin"),
    "negative": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", bytes(8)), "does not begin"),
    "long": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", bytes(9)), "another size"),
    "short": (npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}", bytes(7)), "another size"),
}


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
@pytest.mark.parametrize("kind", BAD)
def test_bad_headers_are_typed_errors(kind, tmp_path):
    content, words = BAD[kind]
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(DataError, match=words):
        open_tensors(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(DataError, match=words):
        open_tensors(tmp_path / "x.npz")


def test_archives_of_other_things_are_refused(tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be read"):
        open_tensors(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "text")
    with pytest.raises(DataError, match=r"'readme\.txt' is not an array"):
        open_tensors(path)


def test_an_archive_that_claims_far_more_than_it_has_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("klms.tensor_files.numpy_files._FREE_BYTES", 1000)
    monkeypatch.setattr("klms.tensor_files.numpy_files._BYTES_PER_BYTE", 10)
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1 << 20))
    with pytest.raises(DataError, match="save it without compression"):
        open_tensors(tmp_path / "x.npz")


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
def test_damaged_archives_are_typed_errors(tmp_path):
    file, rng, path = io.BytesIO(), np.random.default_rng(0), tmp_path / "x.npz"
    np.savez_compressed(file, a=np.arange(50.0), b=np.ones((3, 4), np.float32))
    for _ in range(300):
        damaged = bytearray(file.getvalue())
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            with open_tensors(path):
                pass
        except KLMSError:
            continue
