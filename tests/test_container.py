"""The container of named arrays: what is written is read, and nothing that a stranger writes does harm."""

import io
import json
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import klms
from klms import CorruptMessage, SharedKey, UnsupportedMessage
from klms.container import (
    MOST_TEXT,
    NAMES,
    ArrayInfo,
    describe,
    grouped,
    joined,
    read_arrays,
    read_description,
    read_some,
    write_arrays,
)
from klms.errors import InvalidArgument

KEY = SharedKey(seed=7, round=1, client=2)
ARRAY = hnp.arrays(st.sampled_from(NAMES), hnp.array_shapes(min_dims=0, min_side=0, max_side=4))


def container(parts: object, rest: bytes = b"") -> bytes:
    """What a stranger writes: whatever they like for a description."""
    text = parts if isinstance(parts, bytes) else json.dumps(parts).encode()
    packed = zlib.compress(text)
    return struct.pack("<BI", 1, len(packed)) + packed + rest


def deflated(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-15)


def same(found, arrays) -> None:
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


@given(st.dictionaries(st.text(max_size=5), ARRAY, max_size=4), st.lists(st.integers(0, 9)), st.booleans())
def test_arrays_come_back_to_the_byte(arrays, meta, packed):
    found, beside = read_arrays(write_arrays(arrays, meta, packed=packed), limit=1 << 20)
    assert beside == meta
    same(found, arrays)


def test_the_bytes_of_a_container_are_these():
    written = write_arrays({"a": np.arange(2, dtype="<i2")}, {"round": 3})
    assert written[:5] == bytes([1, *struct.pack("<I", len(written) - 9)])
    text = b'{"names":["a"],"types":["<i2"],"shapes":[[2]],"meta":{"round":3}}'
    assert zlib.decompress(written[5:-4]) == text
    assert written[-4:] == bytes([0, 0, 1, 0])
    with pytest.raises(UnsupportedMessage, match="version 2"):
        read_arrays(b"\2" + written[1:])


def test_other_byte_orders_and_strides_are_written_as_all_others():
    array = np.arange(12, dtype=">i4").reshape(3, 4)[::-1, ::2]
    (found,) = read_arrays(write_arrays({"a": array}))[0].values()
    np.testing.assert_array_equal(found, array)


def test_few_values_and_integers_take_few_bytes():
    """Also with both zeros, which compare equal, and numbers that are none."""
    d = 5000
    values = np.array([0.0, -0.0, 0.25, -1.5, np.inf, np.nan, 1e-42], dtype=np.float32)
    few = values[np.arange(d) % values.size]
    many = np.random.default_rng(0).standard_normal(d).astype(np.float32)
    late = np.concatenate([np.zeros(4500, dtype=np.float32), many[:500]])  # few values at first, many in all
    arrays = {"few": few, "double": few.astype(np.float64), "many": many, "late": late, "flag": np.array(True)}
    arrays["counts"] = np.arange(d, dtype=np.int64).reshape(2, -1)
    written = write_arrays(arrays, packed=True)
    same(read_arrays(written, sum(array.nbytes for array in arrays.values()))[0], arrays)
    assert written == write_arrays(arrays, packed=True)
    assert len(write_arrays({"few": few}, packed=True)) < d
    assert len(write_arrays({"counts": arrays["counts"]}, packed=True)) < d / 5
    assert len(write_arrays({"many": many}, packed=True)) < 0.9 * many.nbytes


@given(st.data())
def test_damaged_bytes_are_refused_or_read_without_harm(data):
    arrays = {"a": np.arange(5), "b": np.ones((2, 2), np.float32), "c": np.zeros(5000)}
    written = bytearray(write_arrays(arrays, packed=data.draw(st.booleans())))
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found, _ = read_arrays(bytes(written), 50_000)
    except (CorruptMessage, UnsupportedMessage):
        return
    assert sum(array.nbytes for array in found.values()) <= 50_000


def test_what_is_cut_or_extended_is_refused():
    written = write_arrays({"a": np.arange(5)})
    for data in (b"", written[:3], written[:-1], written + b"0"):
        with pytest.raises(CorruptMessage):
            read_arrays(data)
    for end in range(len(written)):
        with pytest.raises(CorruptMessage):
            read_some(io.BytesIO(written[:end]), 0, ["a"], 1000)


def test_some_arrays_are_read_without_the_others():
    arrays = {"a": np.arange(1_000_000), "b": np.arange(7), "c": np.ones(3)}
    file = io.BytesIO(b"before" + write_arrays(arrays, {"n": 1}))
    tracemalloc.start()
    found = read_some(file, 6, ["c", "b", "d"], 100)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
    same(found, {"b": arrays["b"], "c": arrays["c"]})
    with pytest.raises(CorruptMessage, match="more than 60 bytes"):
        read_some(file, 6, ["c", "b"], 60)


def test_groups_are_joined_and_taken_apart():
    groups = {"one": {"a.b": np.arange(3), "": np.arange(2)}, "two": {}}
    assert grouped(joined(groups), ("one", "two")) == groups
    with pytest.raises(CorruptMessage, match=r"'one.a.b'"):
        grouped(joined(groups), ("two",))


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (struct.pack("<H", 0) + deflated(bytes(1 << 26)), "fewer or more"),
        (struct.pack("<H", 0) + deflated(bytes(3999)), "fewer or more"),
        (struct.pack("<H", 0) + deflated(bytes(4000))[:-1], "fewer or more"),
        (struct.pack("<H", 0) + deflated(bytes(4000)) + b"more", "fewer or more"),
        (struct.pack("<H", 0) + bytes(100), "unpack"),
        (struct.pack("<H", 1) + bytes(4) + deflated(bytes(1 << 26)), "fewer or more"),
        (struct.pack("<H", 1) + bytes(4) + deflated(bytes([1] * 1000)), "no table"),
        (struct.pack("<H", 65535) + bytes(4) + deflated(bytes(1000)), "fewer or more"),
        (struct.pack("<H", 0), "fewer or more"),
        (b"\0", "cut off"),
        (b"", "cut off"),
    ],
)
def test_packed_arrays_that_unpack_to_something_else_are_refused_in_little_memory(stored, reason):
    parts = {"names": ["a"], "types": ["<f4"], "shapes": [[1000]], "lengths": [len(stored)]}
    data = container(parts, stored)
    tracemalloc.start()
    with pytest.raises(CorruptMessage, match=reason):
        read_arrays(data, 4000)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_arrays_never_take_more_than_the_reader_agreed_to():
    data = write_arrays({"a": np.zeros(1 << 20)}, packed=True)
    with pytest.raises(CorruptMessage, match="take more than"):
        read_arrays(data)
    assert read_arrays(data, 8 << 20)[0]["a"].size == 1 << 20


@pytest.mark.parametrize(
    "parts",
    [
        [],
        {},
        {"names": ["a", "b"], "types": ["<f4"], "shapes": [[2]]},
        {"names": ["a", "a"], "types": ["<f4", "<f4"], "shapes": [[2], [2]]},
        {"names": ["a"], "types": ["<c8"], "shapes": [[2]]},
        {"names": ["a"], "types": ["O"], "shapes": [[2]]},
        {"names": ["a"], "types": [["<f4"]], "shapes": [[2]]},
        {"names": ["a"], "types": ["(1,2"], "shapes": [[]]},
        {"names": ["a"], "types": ["i4," * 300_000], "shapes": [[]]},
        {"names": ["a"], "types": ["<f4"], "shapes": [[-2]]},
        {"names": ["a"], "types": ["<f4"], "shapes": [[1.5]]},
        {"names": ["a"], "types": ["<f4"], "shapes": [2]},
        {"names": ["a"], "types": ["<f4"], "shapes": [[1] * 40]},
        {"names": ["a"], "types": ["<f4"], "shapes": [[1 << 40]]},
        {"names": ["a"], "types": ["<f4"], "shapes": [[0, 2**70]]},
        {"names": ["a"], "types": ["<i4"], "shapes": [[0, 2**39, 2**39]]},
        {"names": ["a"], "types": ["<f4"], "shapes": [[10**4000] * 2]},
        {"names": [["a"]], "types": ["<f4"], "shapes": [[0]]},
        {"names": [None], "types": ["<f4"], "shapes": [[0]]},
        {"names": 3, "types": ["<f4"], "shapes": [[0]]},
        {"names": ["\ud800"], "types": ["<f4"], "shapes": [[0]]},
        {"names": [""] * 200_000, "types": ["|b1"] * 200_000, "shapes": [[0]] * 200_000},
        {"names": ["a"], "types": ["<f4"], "shapes": [[0]], "lengths": []},
        {"names": ["a"], "types": ["<f4"], "shapes": [[0]], "lengths": [-1]},
        {"names": ["a"], "types": ["<f4"], "shapes": [[0]], "lengths": [0.0]},
        {"names": ["a"], "types": ["<f4"], "shapes": [[0]], "lengths": [1 << 70]},
        {"names": ["a"], "types": ["<f4"], "shapes": [[0]], "lengths": 3},
        b"[" * 100_000,
        b"\xff",
        b'{"names": ["\xed\xa0\x80"], "types": ["<f4"], "shapes": [[0]]}',  # half of a surrogate pair, as UTF-8
    ],
)
def test_hostile_descriptions_are_refused(parts):
    with pytest.raises(CorruptMessage):
        read_arrays(container(parts))


@pytest.mark.parametrize(
    "packed", [b"", b"x", zlib.compress(b"{}")[:-1], zlib.compress(b"{}") + b"x", zlib.compress(b"\xff")]
)
def test_damaged_descriptions_are_refused(packed):
    with pytest.raises(CorruptMessage):
        read_description(struct.pack("<BI", 1, len(packed)) + packed)


def test_what_inflates_beyond_the_limit_is_not_inflated():
    data = container(bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(CorruptMessage, match="more than 4,194,304 bytes"):
        read_description(data)
    assert tracemalloc.get_traced_memory()[1] < 4 * MOST_TEXT
    tracemalloc.stop()


# --- through `klms.compress`: whatever it accepts, `decompress` accepts


def through(update):
    return klms.decompress(klms.compress(update, key=KEY), key=KEY)


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"a": np.zeros((1,) * 33)}, "33 dimensions; arrays have at most 32"),
        (np.zeros((1,) * 64, int), "64 dimensions; arrays have at most 32"),
        ({"a": np.zeros((0, 1 << 41))}, "more than 1,099,511,627,776 entries"),
        ({"a": np.broadcast_to(np.int8(0), (1 << 41,))}, "more than 1,099,511,627,776 entries"),
        (np.broadcast_to(np.float32(0), (1 << 16, 1 << 16)), "more than 4,294,967,295 parameters.*several messages"),
        ({"n" * (5 << 20): np.zeros(3)}, "more than 4,194,304 bytes: use shorter names"),
        (dict.fromkeys(map("{:0500}".format, range(9000)), np.zeros(0)), "more than 4,194,304 bytes.*several messages"),
        ({"\ud800": np.zeros(3)}, "surrogates"),
        ({"\ud83d\ude00": np.zeros(3)}, "surrogates"),  # JSON would make it the one character that it stands for
    ],
)
def test_what_decompress_would_refuse_is_not_sent(update, words):
    with pytest.raises(InvalidArgument, match=words):
        klms.compress(update, key=KEY)


def test_what_is_just_within_the_limits_arrives():
    deepest = np.arange(4).reshape(2, 2, *(1,) * 30)
    assert through(deepest).shape == deepest.shape
    empty = np.zeros((0, 1 << 40), dtype=np.int8)
    assert through({"a": empty})["a"].shape == empty.shape
    room = MOST_TEXT - len(zlib.decompress(describe({"": np.array(3)})[5:]))
    assert list(through({"n" * room: np.array(3)})) == ["n" * room]
    with pytest.raises(InvalidArgument):
        klms.compress({"n" * (room + 1): np.array(3)}, key=KEY)


NAMED = ["", "\0", "a.b/c", "\x1b[31m", "\xe9", "e\u0301", "\U0001f600", "\u202e", "\ufeff", "n" * 5000, '"\\', "names"]


def test_names_arrive_as_they_are():
    decoded = through({name: np.array(n) for n, name in enumerate(NAMED)})
    assert [(name, int(number)) for name, number in decoded.items()] == [(name, n) for n, name in enumerate(NAMED)]


def test_an_empty_dictionary_arrives():
    assert through({}) == {}


def test_one_array_is_not_a_dictionary_of_one():
    assert isinstance(through({"": np.array(3)}), dict)
    assert isinstance(through(np.array(3)), np.ndarray)


def test_long_names_are_cut_where_they_are_shown():
    assert len(str(ArrayInfo("n" * 10_000, np.dtype("<f4"), (2, 3)))) < 200
    assert str(ArrayInfo("a", np.dtype("<f4"), (2, 3))) == "'a' of type <f4 and shape (2, 3)"
