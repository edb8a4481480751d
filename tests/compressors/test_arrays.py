"""Arrays of every type, byte order, shape and stride: they arrive, or the error says what to do."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import klms
from klms import SharedKey
from klms.errors import InvalidArgument

KEY = SharedKey(seed=7, round=1, client=2)
LONG = np.dtype(np.longdouble)
TYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(),
    st.sampled_from([LONG, LONG.newbyteorder(">")]),
    hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.timedelta64_dtypes(),
    hnp.unicode_string_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.array_dtypes(),
    st.sampled_from([np.dtype(object), np.dtype("V3")]),
)
STEPS = st.sampled_from([1, 2, -1, -3])


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Any array: views with any strides, in any order of axes, repeated, read-only."""
    dtype = draw(TYPES)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    if dtype.kind in "iub":
        numbers = rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
        array = (numbers % 2 if dtype.kind == "b" else numbers).view(dtype).reshape(shape)
    else:
        array = np.zeros(shape, dtype)
        if dtype.kind == "f":
            array[...] = rng.standard_normal(shape)
    array = array[..., *(slice(None, None, draw(STEPS)) for _ in array.shape)]
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    if draw(st.booleans()):
        array = np.broadcast_to(array, (2, *array.shape))  # read-only, with a stride of 0
    return array


@settings(max_examples=100)
@given(arrays(), st.booleans())
def test_arrays_arrive_or_are_refused(array, named):
    update = {"other": np.arange(3), "array": array} if named else array
    if array.dtype.kind not in "iubf":
        with pytest.raises(InvalidArgument, match="which cannot be sent"):
            klms.compress(update, 4.0, key=KEY)
        return
    decoded = klms.decompress(klms.compress(update, 4.0, key=KEY), key=KEY)
    if named:
        assert list(decoded) == ["other", "array"]
        np.testing.assert_array_equal(decoded["other"], [0, 1, 2])
        decoded = decoded["array"]
    assert type(decoded) is np.ndarray
    assert decoded.shape == array.shape
    assert decoded.dtype.kind == array.dtype.kind
    assert decoded.dtype.itemsize == min(array.dtype.itemsize, 8)
    assert decoded.dtype.isnative
    assert decoded.flags.writeable
    assert decoded.flags.c_contiguous
    if array.dtype.kind == "f":
        assert np.isfinite(decoded).all()
    else:
        np.testing.assert_array_equal(decoded, array)


@pytest.mark.parametrize("kind", ["i2", "u4", "i8", "f2", "f4", "f8"])
def test_the_byte_order_changes_no_byte_of_the_message(kind):
    numbers = np.arange(-3, 500) if kind[0] != "u" else np.arange(503)
    messages = [
        klms.compress({"a": numbers.astype(order + kind)}, 1.0, key=KEY, rng=np.random.default_rng(0)) for order in "<>"
    ]
    assert messages[0] == messages[1]


def test_truth_values_are_whatever_is_not_zero():
    odd = np.array([0, 1, 2, 255], dtype=np.uint8).view(bool)
    decoded = klms.decompress(klms.compress(odd, key=KEY), key=KEY)
    assert decoded.view(np.uint8).tolist() == [0, 1, 1, 1]


class Labelled(np.ndarray):
    """A subclass as other libraries have them."""


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_arrive_as_arrays():
    numbers = np.arange(12).reshape(3, 4)
    update = {"a": numbers.view(Labelled), "b": np.matrix(numbers), "c": numbers.tolist()}
    for decoded in klms.decompress(klms.compress(update, key=KEY), key=KEY).values():
        assert type(decoded) is np.ndarray
        np.testing.assert_array_equal(decoded, numbers)


class Name(str):
    """A string that equals itself alone, as no string should."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


FIELDS = np.zeros(3, dtype=[("a", "<f4"), ("b", "<i4")])


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"a": np.zeros(3, complex)}, "array 'a' holds complex128.*real and its imaginary"),
        (np.zeros(3, complex), "the update holds complex128"),
        ({"a": np.zeros(3, "M8[s]")}, r"datetime64\[s\].*integers.*view\('i8'\)"),
        ({"a": np.zeros(3, "m8[s]")}, r"timedelta64\[s\].*integers"),
        ({"a": FIELDS}, "fields"),
        ({"a": FIELDS.view(np.recarray)}, "fields"),
        ({"a": np.array(["x"])}, "'a' holds <U1.*only numbers"),
        ({"a": np.array([b"x"])}, "only numbers"),
        ({"a": None}, "holds object.*only numbers"),
        ({"a": np.array([1, None])}, "holds object"),
        ({"a": 2**70}, "holds object"),
        ({"a": [[1, 2], [3]]}, "array 'a' cannot become a NumPy array.*inhomogeneous"),
        ({"a": np.ma.array([1.0, 2.0], mask=[0, 1])}, r"'a' is masked.*filled\(0\)"),
        (np.ma.array([1, 2]), "the update is masked"),
        ({"a": {"b": np.zeros(3)}}, "'a' is a dictionary itself.*flat dictionary"),
        ({"a": {}}, "flat dictionary"),
        ([np.zeros(3), np.zeros(3)], "dictionary of arrays"),
        ((np.zeros(3),), "dictionary of arrays"),
        ({1: np.zeros(3)}, "must be strings, and 1 is not"),
        ({None: np.zeros(3)}, "must be strings"),
        ({b"a": np.zeros(3)}, "must be strings"),
        ({("a", "b"): np.zeros(3)}, "must be strings"),
        ({Name("a"): np.zeros(3), Name("a"): np.zeros(3)}, "not different strings"),
    ],
)
def test_what_cannot_be_sent_is_explained(update, words):
    with pytest.raises(InvalidArgument, match=words):
        klms.compress(update, key=KEY)


def test_tensors_that_numpy_cannot_hold_are_explained():
    torch = pytest.importorskip("torch")
    tensors = {
        "float8": torch.zeros(4).to(torch.float8_e4m3fn),
        "sparse": torch.eye(3).to_sparse(),
        "nowhere": torch.zeros(3, device="meta"),
    }
    for name, tensor in tensors.items():
        with pytest.raises(InvalidArgument, match=f"array '{name}' cannot become a NumPy array, convert it first"):
            klms.compress({name: tensor}, key=KEY)
    with pytest.raises(InvalidArgument, match="real and its imaginary"):
        klms.compress(torch.zeros(3, dtype=torch.complex64), key=KEY)


def test_views_of_tensors_arrive():
    torch = pytest.importorskip("torch")
    numbers = torch.arange(24).reshape(4, 6)
    turned = torch.tensor([1 + 2j, 3 - 4j]).conj().imag  # negated when it is read
    update = {"a": numbers.T[::2], "b": numbers.expand(2, 4, 6), "c": numbers.bool(), "d": torch.tensor(3), "e": turned}
    decoded = klms.decompress(klms.compress(update, 8.0, key=KEY), key=KEY)
    for name in "abcd":
        assert torch.equal(decoded[name], update[name])
    assert decoded["e"].shape == (2,)
    halves = torch.full((4, 500), 0.5, dtype=torch.bfloat16, requires_grad=True)
    decoded = klms.decompress(klms.compress(halves.T, 8.0, key=KEY), key=KEY)
    assert decoded.dtype == torch.bfloat16
    np.testing.assert_allclose(decoded.float(), np.full((500, 4), 0.5), atol=0.05)


class Foreign:
    """An array of another framework: NumPy can read it, and it says its type."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.dtype = array.dtype

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return self._array


@pytest.mark.parametrize("wrap", [np.asarray, Foreign])
def test_bfloat16_of_jax_and_tensorflow_arrives_as_float32(wrap):
    halves = np.full((4, 500), 0.5, dtype=ml_dtypes.bfloat16)
    message = klms.compress({"a": wrap(halves.T), "b": wrap(np.arange(3))}, 8.0, key=KEY)
    decoded = klms.decompress(message, key=KEY, like={"a": wrap(halves.T), "b": np.arange(3)})
    assert decoded["a"].dtype == np.float32
    np.testing.assert_allclose(decoded["a"], np.full((500, 4), 0.5), atol=0.05)
    assert len(message) < 3000  # two bytes per entry at most, not four


@pytest.mark.parametrize("wrap", [np.asarray, Foreign])
def test_the_exchange_widens_bfloat16(wrap):
    model = {"a": wrap(np.full((40, 50), 0.5, dtype=ml_dtypes.bfloat16))}
    server, client = klms.Server(model, bits_per_parameter=8), klms.Client()
    arrays = client.receive(server.request("a"))
    assert arrays["a"].dtype == np.float32
    trained = wrap((arrays["a"] + 1).astype(ml_dtypes.bfloat16))
    found = server.receive("a", client.reply({"a": trained}))
    np.testing.assert_allclose(found["a"], np.full((40, 50), 1.5), atol=0.1)
