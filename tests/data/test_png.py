"""PNG: every filter, every kind of pixel; a flipped bit anywhere is noticed."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from klms.data import png
from klms.data.errors import DataError
from tests.data import files

PIXELS = hnp.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4)))
PICTURE = np.random.default_rng(3).integers(0, 256, (6, 5, 3), dtype=np.uint8)


@given(PIXELS, st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_what_was_written_is_read(pixels: files.Bytes, filters: list[int]) -> None:
    assert np.array_equal(png.decode(files.png(pixels, filters), "x"), pixels)


@pytest.mark.parametrize("at", range(0, 200, 7))
def test_a_flipped_bit_is_noticed(at: int) -> None:
    data = bytearray(files.png(PICTURE, [1, 4]))
    data[at % len(data)] ^= 4
    with pytest.raises(DataError, match="picture"):
        png.decode(bytes(data), "picture")


@given(st.integers(0, 150))
def test_a_file_cut_short_is_noticed(end: int) -> None:
    data = files.png(PICTURE, [2])
    with pytest.raises(DataError, match="picture"):
        png.decode(data[: min(end, len(data) - 1)], "picture")


def with_header(header: bytes, lines: bytes) -> bytes:
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(files.png_chunk(*chunk) for chunk in chunks)


@pytest.mark.parametrize(
    ("header", "lines", "reason"),
    [
        ("00000001 00000001 10 02 00 00 00", bytes(7), "8 bits"),
        ("00000001 00000001 08 03 00 00 00", bytes(2), "palette"),
        ("00000001 00000001 08 02 00 00 01", bytes(4), "interlacing"),
        ("ffffffff ffffffff 08 02 00 00 00", bytes(4), "more than is read"),
        ("00000000 00000000 08 02 00 00 00", bytes(4), "more than is read"),
        ("00000001 00000001 08 02 00 00 00", b"\5\0\0\0", "filter 5"),
        ("00000001 00000001 08 02 00 00 00", bytes(3), "cut short or too many"),
        ("00000001 00000001 08 02 00 00 00", bytes(1 << 20), "cut short or too many"),
    ],
)
def test_what_is_not_read_is_said(header: str, lines: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        png.decode(with_header(bytes.fromhex(header), lines), "x")
