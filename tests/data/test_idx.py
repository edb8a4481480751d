"""IDX: what the header promises is there to the byte, or the file is refused by name."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from klms.data import idx
from klms.errors import DataError
from tests.data import files


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)))
def test_what_was_written_is_read(array: files.Bytes) -> None:
    assert np.array_equal(idx.decode(files.idx(array), "x"), array)


@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=3, max_side=3)), st.data())
def test_a_changed_byte_is_other_data_or_a_data_error(array: files.Bytes, draw: st.DataObject) -> None:
    data = bytearray(files.idx(array))
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        found = idx.decode(bytes(data), "x")
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
        idx.read(path)


@pytest.mark.parametrize("cut", [1, 5, 9, 100])
def test_a_truncated_gzip_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(files.idx(files.grey(3)))[:-cut])
    with pytest.raises(DataError, match=path.name):
        idx.read(path)


def test_a_flipped_bit_inside_a_gzip_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    data = bytearray(gzip.compress(files.idx(files.grey(3))))
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=path.name):
        idx.read(path)


@pytest.mark.parametrize("shape", [b"\xff" * 4, b"\x01\0\0\0"])
def test_a_header_that_promises_too_much_is_not_believed(tmp_path: Path, shape: bytes) -> None:
    path = tmp_path / "huge.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + shape))
    with pytest.raises(DataError, match=r"huge\.gz: its header promises .* (no data set has|more than it can hold)"):
        idx.read(path)


def test_a_well_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(files.idx(np.zeros(1 << 22, np.uint8))))
    assert idx.read(path).size == 1 << 22
