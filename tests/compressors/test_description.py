"""What a message says of its arrays: whatever `compress` accepts, `decompress` accepts."""

import json
import zlib

import numpy as np
import pytest

import klms
from klms import CorruptMessage, SharedKey
from klms.compressors.description import MOST_TEXT, Described, Description, read_description, write_description
from klms.errors import InvalidArgument

KEY = SharedKey(seed=7, round=1, client=2)


def through(update):
    return klms.decompress(klms.compress(update, key=KEY), key=KEY)


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"a": np.zeros((1,) * 33)}, "33 dimensions; arrays may have 32"),
        (np.zeros((1,) * 64, int), "64 dimensions; arrays may have 32"),
        ({"a": np.zeros((0, 1 << 41))}, "more than 1,099,511,627,776 entries"),
        ({"a": np.broadcast_to(np.int8(0), (1 << 41,))}, "more than 1,099,511,627,776 entries"),
        (np.broadcast_to(np.float32(0), (1 << 16, 1 << 16)), "more than 4,294,967,295 parameters.*several messages"),
        ({"n" * (2 << 20): np.zeros(3)}, "more than 1,048,576 bytes: use shorter names"),
        (dict.fromkeys(map("{:0500}".format, range(2100)), np.zeros(0)), "more than 1,048,576 bytes.*several messages"),
        ({"\ud800": np.zeros(3)}, "strings of Unicode"),
        ({"\ud83d\ude00": np.zeros(3)}, "not Unicode"),  # JSON would make it the one character that it stands for
        ({"\ud83d\ude00": np.zeros(3), "\U0001f600": np.zeros(3)}, "strings of Unicode"),
    ],
)
def test_what_decompress_would_refuse_is_not_sent(update, words):
    with pytest.raises(InvalidArgument, match=f"the update cannot be sent: .*{words}"):
        klms.compress(update, key=KEY)


def test_what_is_just_within_the_limits_arrives():
    deepest = np.arange(4).reshape(2, 2, *(1,) * 30)
    assert through(deepest).shape == deepest.shape
    empty = np.zeros((0, 1 << 40), dtype=np.int8)
    assert through({"a": empty})["a"].shape == empty.shape
    described = Description([Described("", (), "<i4")], named=True)
    room = MOST_TEXT - len(zlib.decompress(write_description(described)))
    assert list(through({"n" * room: np.array(3)})) == ["n" * room]
    with pytest.raises(InvalidArgument):
        klms.compress({"n" * (room + 1): np.array(3)}, key=KEY)


def test_names_arrive_as_they_are():
    names = [
        "",
        "\0",
        "a.b/c",
        "\x1b[31m",
        "\xe9",
        "e\u0301",
        "\U0001f600",
        "\u202e",
        "\ufeff",
        "n" * 5000,
        '"\\',
        "names",
    ]
    decoded = through({name: np.array(n) for n, name in enumerate(names)})
    assert [(name, int(number)) for name, number in decoded.items()] == [(name, n) for n, name in enumerate(names)]


def test_an_empty_dictionary_arrives():
    assert through({}) == {}


def test_one_array_is_not_a_dictionary_of_one():
    assert isinstance(through({"": np.array(3)}), dict)
    assert isinstance(through(np.array(3)), np.ndarray)


@pytest.mark.parametrize("name", ["\ud800", "a\udfff"])
def test_names_that_cannot_be_printed_are_refused(name):
    parts = {"shapes": [[2]], "types": ["<f4"], "names": [name]}
    for text in (json.dumps(parts).encode(), json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")):
        with pytest.raises(CorruptMessage, match="strings of Unicode"):
            read_description(zlib.compress(text))


def test_long_names_are_cut_where_they_are_shown():
    assert len(str(Described("n" * 10_000, (2, 3), "<f4"))) < 200
    assert str(Described("a", (2, 3), "<f4")) == "'a' of type <f4 and shape (2, 3)"


@pytest.mark.parametrize(
    "packed", [b"", b"x", zlib.compress(b"{}")[:-1], zlib.compress(b"{}") + b"x", zlib.compress(b"\xff")]
)
def test_damaged_descriptions_are_refused(packed):
    with pytest.raises(CorruptMessage):
        read_description(packed)


def test_what_inflates_beyond_the_limit_is_not_inflated():
    packed = zlib.compress(bytes(8 << 20), 9)
    with pytest.raises(CorruptMessage, match="more than 1,048,576 bytes"):
        read_description(packed)
