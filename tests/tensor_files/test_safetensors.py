"""The layout of safetensors: literal bytes, a round trip of every type, and hostile headers."""

import json
import struct
import time

import numpy as np
import pytest

from klms.compressors.arrays import bfloat16_of
from klms.errors import DataError, KLMSError
from klms.tensor_files.safetensors import open_safetensors
from tests.tensor_files.adapters import adapter, write


def literal(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(**changes: object) -> dict:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


def test_a_file_of_the_library_is_read(tmp_path):
    """Bytes as `safetensors.numpy.save` writes them."""
    header = b'{"__metadata__":{"format":"np"},"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},'
    header += b'"y":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]}}   '
    data = np.array([1.5, -2], np.float32).tobytes() + bytes.fromhex("803f 00c0 2041".replace(" ", ""))
    path = tmp_path / "x.safetensors"
    path.write_bytes(literal(header, data))
    with open_safetensors(path) as opened:
        assert opened.metadata == {"format": "np"}
        assert opened.sources["x"].shape == (2, 1)
        assert opened.sources["x"].floats(0, 2).tolist() == [1.5, -2]
        assert opened.sources["y"].floats(0, 3).tolist() == [1.0, -2.0, 10.0]


def test_every_type_and_shape_survives(tmp_path):
    rng = np.random.default_rng(0)
    types = ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
    tensors = {kind: rng.integers(0, 2, (3, 5)).astype(kind) for kind in types}
    tensors |= {
        "bf": bfloat16_of(rng.standard_normal(7, np.float32)),
        "scalar": np.array(2.5),
        "none": np.zeros((0, 4)),
    }
    tensors["turned"] = rng.standard_normal((4, 6)).T
    with open_safetensors(write(tmp_path / "x.safetensors", tensors)) as opened:
        assert set(opened.sources) == set(tensors)
        for name, tensor in tensors.items():
            assert opened.sources[name].shape == tensor.shape
            assert opened.sources[name].dtype == tensor.dtype
            assert opened.sources[name].exact().tobytes() == tensor.tobytes()


def test_the_library_reads_what_we_write(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    tensors = adapter(bfloat16=False)
    loaded = library.load_file(write(tmp_path / "x.safetensors", tensors))
    assert all(np.array_equal(loaded[name], tensor) for name, tensor in tensors.items())


EIGHT = bytes(8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "too short"),
        (b"1234567", "too short"),
        (literal(one(), EIGHT, length=1 << 60), "a header of 1,152,921,504,606,846,976 bytes"),
        (literal(one(), EIGHT, length=200), "is the download complete"),
        (literal(b"\xff\xfe"), "not one of safetensors"),
        (literal(b"[" * 100_000), "not one of safetensors"),
        (literal([1, 2]), "not a JSON object"),
        (literal(b'{"a": 1, "a": 2}'), "a name occurs twice"),
        (literal({"a": [1]}), "does not describe tensor 'a'"),
        (literal({"a": {"dtype": "F32", "shape": [2]}}), "does not describe tensor 'a'"),
        (literal(one(shape=[-2])), "not a list of numbers"),
        (literal(one(shape=[1 << 40, 1 << 40])), "more than"),
        (literal(one(shape=[2.0]), EIGHT), "not a list of numbers"),
        (literal(one(data_offsets=[0, 8, 9]), EIGHT), "does not describe"),
        (literal(one(data_offsets=["0", "8"]), EIGHT), "another place"),
        (literal(one(data_offsets=[-8, 0]), EIGHT), "another place"),
        (literal(one(data_offsets=[0, 7]), EIGHT), "another place"),
        (literal(one(data_offsets=[4, 12]), bytes(12)), "hole"),
        (literal(one() | {"b": one()["a"]}, EIGHT), "overlaps"),
        (literal(one(), bytes(9)), "the tensors end after"),
        (literal(one(), bytes(7)), "the tensors end after"),
        (literal(one(dtype="F8_E4M3", shape=[8]), EIGHT), "F8_E4M3, which klms cannot send: convert it"),
        (literal(one(dtype=["F32"]), EIGHT), "cannot send"),
        (literal(one() | {"__metadata__": {"a": 1}}, EIGHT), "metadata"),
        (literal(one() | {"__metadata__": "text"}, EIGHT), "metadata"),
    ],
)
def test_hostile_headers_are_typed_errors(content, words, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    started = time.process_time()
    with pytest.raises(DataError, match=words):
        open_safetensors(path)
    assert time.process_time() - started < 1


def test_damaged_files_are_typed_errors(tmp_path):
    path = write(tmp_path / "x.safetensors", adapter(layers=1, width=16))
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole) if rng.random() < 0.2 else 900)] ^= 1 << rng.integers(8)
        path.write_bytes(damaged[: len(whole) if rng.random() < 0.8 else rng.integers(len(whole))])
        try:
            with open_safetensors(path) as opened:
                for source in opened.sources.values():
                    source.exact()
        except KLMSError:
            continue
