"""Arguments of a wrong kind are explained where they are given."""

import numpy as np
import pytest

import klms
from klms.compressors.arguments import check_model, like_held, message_bytes, named_arrays, number
from klms.errors import InvalidArgument

HELD = {"w": np.zeros((3, 2), np.float32), "n": np.zeros(1, np.int64)}


@pytest.mark.parametrize("value", ["0.1", None, [1], True, 1j])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InvalidArgument, match="bits_per_parameter must be a number, got"):
        number("bits_per_parameter", value)


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int64(3)])
def test_numbers_of_python_and_numpy_are_taken(value):
    assert number("up", value) == value


def test_bytes_are_bytes_and_not_text():
    assert message_bytes("reply", bytearray(b"x")) == message_bytes("reply", memoryview(b"x")) == b"x"
    with pytest.raises(InvalidArgument, match=r"the reply must be bytes, got str: .*open\(path, 'rb'\)"):
        message_bytes("the reply", "x")


class Module:
    """Has the interface by which a torch module is recognised."""

    def state_dict(self):
        return {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([np.zeros(3)], r"a dictionary of arrays is expected, got list: pass \{name: array"),
        (None, "got NoneType"),
        (Module(), r"got Module: pass its state_dict\(\)"),
        ({1: np.zeros(3)}, "names of arrays must be strings, and 1 is not"),
        ({"w": [[1.0], [1.0, 2.0]]}, "array 'w' cannot become a NumPy array"),
    ],
)
def test_what_is_no_dictionary_of_arrays_is_explained(value, words):
    with pytest.raises(InvalidArgument, match=words):
        named_arrays("model", value)


def test_copies_are_made_on_request():
    assert named_arrays("model", HELD)["w"] is HELD["w"]
    assert not np.shares_memory(named_arrays("model", HELD, copy=True)["w"], HELD["w"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"w": np.zeros(3)}, r"array 'w' has shape \(3,\), and \(3, 2\) in the server's model: .* a new server"),
        ({"w": None}, "array 'w' of the server's model is missing"),
        ({"v": np.zeros(3)}, "the server's model has no array 'v'"),
    ],
)
def test_another_model_than_the_held_one_is_explained(changes, words):
    arrays = {name: array for name, array in {**HELD, **changes}.items() if array is not None}
    with pytest.raises(InvalidArgument, match=words):
        like_held(arrays, HELD)


def test_the_held_model_decides_order_and_floating_point():
    found = like_held({"n": np.full(1, 0.5), "w": np.ones((3, 2), np.int64)}, HELD)
    assert [(name, array.dtype) for name, array in found.items()] == [("w", np.float32), ("n", np.float64)]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([1.0, np.nan]), "array 'w' has entries that are infinite or not a number"),
        (np.array(-np.inf, np.float16), "array 'w' has entries that are infinite"),
        (np.zeros(3, complex), "holds complex128, which cannot be sent: pass its real and its imaginary part"),
        (np.array(["a"]), "holds <U1, which cannot be sent: only numbers"),
    ],
)
def test_arrays_that_no_client_could_take_are_refused(array, words):
    with pytest.raises(InvalidArgument, match=words):
        check_model({"n": np.zeros(0), "w": array})


def test_a_number_is_not_a_block_map():
    p, key = klms.Bernoulli(np.full(100, 0.5)), klms.SharedKey(0, 0, 0)
    with pytest.raises(InvalidArgument, match=r"blocks must be Blocks, such as klms.fixed_blocks\(100, size=32\), got"):
        klms.Codec().encode(p, p, 100, key=key, rng=np.random.default_rng(0))
    message = klms.Codec().encode(p, p, klms.fixed_blocks(100, 32), key=key, rng=np.random.default_rng(0))
    with pytest.raises(InvalidArgument, match="blocks must be Blocks"):
        klms.Codec().decode(message, p, key=key, blocks=100)
