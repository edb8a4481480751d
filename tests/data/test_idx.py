"""IDX: what the header promises is there to the byte, or the file is refused by name."""

import contextlib
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from klms.data import idx
from klms.data.errors import DataError
from tests.data import files


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)))
def test_what_was_written_is_read(array: files.Bytes) -> None:
    assert np.array_equal(idx.decode(files.idx(array), "x"), array)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_array_or_a_data_error(data: bytes) -> None:
    with contextlib.suppress(DataError):
        assert files.idx(idx.decode(data, "x")) == data


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


def test_a_header_that_promises_terabytes_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "huge.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12))
    with pytest.raises(DataError, match="promises"):
        idx.read(path)
