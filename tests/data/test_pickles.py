"""CIFAR's pickles are read; whatever else a pickle can do, it cannot do here."""

import collections
import contextlib
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms.data import pickles
from klms.data.errors import DataError, UnsafePickle
from tests.data import files

DATA = np.arange(24, dtype=np.uint8).reshape(2, 12)


def kept(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "data_batch_1"
    path.write_bytes(data)
    return path


def test_what_python_2_wrote_is_read(tmp_path: Path) -> None:
    content = pickles.read(kept(tmp_path, files.old_pickle(DATA, {b"labels": [3, 8], b"batch_label": b"batch 1 of 5"})))
    assert np.array_equal(content.pop("data"), DATA)  # type: ignore[call-overload]
    assert content == {"labels": [3, 8], "batch_label": b"batch 1 of 5"}


def test_the_python_2_bytes_mean_the_same_to_the_ordinary_reader() -> None:
    # The tests' own writer is right: numpy reads what it wrote.
    content = pickle.loads(
        files.old_pickle(DATA, {b"labels": [3]}).replace(b"numpy.core", b"numpy._core"), encoding="bytes"
    )
    assert np.array_equal(content[b"data"], DATA)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_python_3_writes_is_read(tmp_path: Path, protocol: int, order: str) -> None:
    array = np.array(DATA, order=order)  # type: ignore[call-overload]
    content = pickles.read(kept(tmp_path, pickle.dumps({"data": array, "fine_labels": [3, 8]}, protocol)))
    assert np.array_equal(content["data"], DATA)  # type: ignore[arg-type]
    assert content["fine_labels"] == [3, 8]


def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    data = files.hostile_pickle(mark)
    with pytest.raises(UnsafePickle, match=r"data_batch_1: .*exec"):
        pickles.read(kept(tmp_path, data))
    assert not mark.exists()
    pickle.loads(data)
    assert mark.exists(), "the pickle would have run under the ordinary reader"


@pytest.mark.parametrize(
    "thing",
    [
        os.system,
        eval,
        getattr,
        collections.OrderedDict(a=1),
        np.float64(1.0),
        np.random.default_rng(1),
        Path("x"),
    ],
)
def test_nothing_but_arrays_of_bytes_can_be_named(tmp_path: Path, thing: object) -> None:
    for protocol in range(6):
        with pytest.raises(UnsafePickle):
            pickles.read(kept(tmp_path, pickle.dumps({b"data": thing}, protocol)))


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\ndtype.__init__.__globals__\n.",  # a dotted path from something that is allowed
        b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
        b"c_codecs\nencode\n(Vx\nVrot13\ntR.",  # an encoding is code, too
        b"}r\xff\xff\xff\x7f.",  # room for two thousand million objects
    ],
)
def test_the_known_ways_around_are_closed(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(UnsafePickle):
        pickles.read(kept(tmp_path, program))


def test_a_class_that_is_lent_cannot_be_changed(tmp_path: Path) -> None:
    # BUILD with a pair sets attributes, also those of a class.
    program = b"cnumpy\ndtype\n(N}Vcode\nVbad\nstb."
    with pytest.raises(DataError):
        pickles.read(kept(tmp_path, program))
    assert not hasattr(pickles._DType, "code")


def array_state(shape: bytes, raw: bytes, dtype: bytes = b"u1") -> bytes:
    array = b"cnumpy.core.multiarray\n_reconstruct\n(tR(I1\n" + shape
    array += (
        b"cnumpy\ndtype\n(T" + struct.pack("<I", len(dtype)) + dtype + b"tRI00\nT" + struct.pack("<I", len(raw)) + raw
    )
    return b"\x80\x02}(T\x04\0\0\0data" + array + b"tbu."


@pytest.mark.parametrize(
    "data",
    [
        array_state(b"(I4\nt", b"abc"),
        array_state(b"(I-1\nI-3\nt", b"abc"),
        array_state(b"(I99999999\nI99999999\nt", b"abc"),
        array_state(b"I3\n", b"abc"),
        array_state(b"(I3\nt", b"abc", b"O8"),
        b"\x80\x02}(T\x04\0\0\0datacnumpy.core.multiarray\n_reconstruct\n(tRu.",
        b"\x80\x02].",
        b"",
    ],
)
def test_an_array_that_is_not_what_it_says_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DataError, match="data_batch_1"):
        pickles.read(kept(tmp_path, data))


def test_the_states_above_are_refused_for_their_content_alone(tmp_path: Path) -> None:
    content = pickles.read(kept(tmp_path, array_state(b"(I3\nt", b"abc")))
    assert np.array_equal(content["data"], [97, 98, 99])  # type: ignore[arg-type]


@given(st.data())
def test_damage_is_a_data_error_or_another_array(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = bytearray(files.old_pickle(DATA, {b"labels": [3, 8]}))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = kept(tmp_path_factory.getbasetemp(), bytes(whole))
    with contextlib.suppress(DataError):
        assert isinstance(pickles.read(path), dict)
