"""Archives of arrays from strangers."""

import io
import zipfile

import numpy as np
import pytest

from klms.data.archive import read_arrays
from klms.errors import CorruptMessage


def archive(save=np.savez, **arrays: object) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def member(content: bytes, kind: int = zipfile.ZIP_STORED, names: str = "a") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(f"{name}.npy", content, kind)
    return buffer.getvalue()


def test_numbers_are_read():
    found = read_arrays(io.BytesIO(archive(a=np.arange(3), b=np.float32(2.5))), 1000)
    assert found["a"].tolist() == [0, 1, 2]
    assert found["b"].item() == 2.5


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (archive(np.savez_compressed, a=np.zeros(1 << 20)), "unpacks to more"),
        (member(b"x" * 900, names="ab").replace(b"b.npy", b"a.npy"), "not one that klms writes"),
        (member(bytes(100), zipfile.ZIP_LZMA), "not one that klms writes"),
        (archive(a=np.array(["text"])), "something other than numbers"),
        (archive(a=np.array([1 + 2j])), "something other than numbers"),
        (archive(a=np.array([{}], dtype=object)), "not an archive of arrays"),
        (member(b"no array"), "something other than numbers"),
        (b"", "not an archive of arrays"),
        (b"PK" + bytes(40), "not an archive of arrays"),
    ],
)
def test_anything_else_is_refused(data, reason):
    with pytest.raises(CorruptMessage, match=reason):
        read_arrays(io.BytesIO(data), max(len(data), 2000))


def test_a_header_that_promises_more_than_there_is_is_refused():
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(10))
    forged = buffer.getvalue().replace(b"'shape': (10,), }           ", b"'shape': (1000000000000,), }")
    assert forged != buffer.getvalue()
    with pytest.raises(CorruptMessage):
        read_arrays(io.BytesIO(member(forged)), 10_000)
