"""`klms.compress` and `klms.decompress`: any arrays in, bytes, the same arrays out, up to noise of mean zero."""

import io
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import klms
from klms import CorruptMessage, KLMSError, SharedKey, SideInformationMismatch, UnsupportedMessage
from klms.compression import inspect_update
from klms.compressors.arrays import as_tensor, bfloat16_of
from klms.compressors.trellis import chunks
from klms.container import describe
from klms.errors import InvalidArgument, TrainingDiverged
from klms.frame import Frame, Kind
from tests.support.mutation import mutate

KEY = SharedKey(seed=7, round=1, client=2)


def resnet18() -> dict[str, np.ndarray]:
    """An update with the names and shapes of a ResNet-18 with 1,000 classes."""
    rng, shapes = (
        np.random.default_rng(0),
        {"conv1.weight": (64, 3, 7, 7), "fc.weight": (1000, 512), "fc.bias": (1000,)},
    )

    def norm(name, size):
        shapes.update({f"{name}.weight": (size,), f"{name}.bias": (size,)})

    norm("bn1", 64)
    before = 64
    for layer, size in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"layer{layer}.{block}"
            shapes[f"{name}.conv1.weight"] = (size, size if block else before, 3, 3)
            shapes[f"{name}.conv2.weight"] = (size, size, 3, 3)
            norm(f"{name}.bn1", size)
            norm(f"{name}.bn2", size)
            if not block and layer > 1:
                shapes[f"{name}.downsample.0.weight"] = (size, before, 1, 1)
                norm(f"{name}.downsample.1", size)
        before = size
    return {name: rng.normal(0, 0.01, shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("bits", [0.1, 1.0])
def test_a_resnet_keeps_names_shapes_and_types(bits):
    update = resnet18()
    d = sum(array.size for array in update.values())
    message = klms.compress(update, bits, key=KEY, effort="fast")
    decoded = klms.decompress(message, key=KEY)
    assert len(update) == 62
    assert list(decoded) == list(update)
    assert all(decoded[name].shape == array.shape for name, array in update.items())
    assert all(decoded[name].dtype == array.dtype for name, array in update.items())
    assert 0.97 * bits < 8 * len(message) / d < 1.01 * bits
    description = inspect_update(message)[1].end
    assert description < 0.01 * len(message) * (1 if bits == 1 else 10)
    dot = sum(float(np.vdot(decoded[name], array)) for name, array in update.items())
    assert dot == pytest.approx(sum(float(np.vdot(a, a)) for a in update.values()), rel=0.02)


def test_it_works_without_extras():
    """In a process in which torch and flwr cannot be imported."""
    code = """
import sys
sys.modules["torch"] = sys.modules["flwr"] = sys.modules["matplotlib"] = None
import numpy as np, klms
key = klms.SharedKey(1, 2, 3)
x = np.ones((30, 40), dtype=np.float32)
print(klms.decompress(klms.compress(x, 2.0, key=key), key=key).shape)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "(30, 40)\n", done.stderr


def test_torch_tensors_of_any_type_are_taken():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.BatchNorm1d(30))
    update = module.state_dict() | {"half": torch.ones(1000, dtype=torch.bfloat16), "f16": torch.ones(50).half()}
    update["gradient"] = torch.ones(64, requires_grad=True)
    decoded = klms.decompress(klms.compress(update, 4.0, key=KEY), key=KEY)
    assert list(decoded) == list(update)
    assert all(decoded[name].dtype == tensor.dtype for name, tensor in update.items())
    assert all(decoded[name].shape == tensor.shape for name, tensor in update.items())
    assert decoded["1.num_batches_tracked"] == 0
    module.load_state_dict({name: decoded[name] for name in module.state_dict()})
    torch.testing.assert_close(decoded["half"], update["half"], atol=0.1, rtol=0)

    alone = klms.decompress(klms.compress(update["half"], 8.0))
    assert isinstance(alone, torch.Tensor)
    assert alone.dtype == torch.bfloat16
    assert klms.decompress(klms.compress(np.ones(30), 8.0), like=torch.ones(30).double()).dtype == torch.float64


def test_tensors_arrive_as_arrays_where_torch_is_not_imported(tmp_path):
    torch = pytest.importorskip("torch")
    update = {"a": torch.ones(1000, dtype=torch.bfloat16), "b": torch.ones(50).half(), "n": torch.tensor(3)}
    message = klms.compress(update, 8.0)
    (tmp_path / "message").write_bytes(message)
    code = """
import sys, numpy as np, klms
with open("message", "rb") as file:
    decoded = klms.decompress(file)
assert "torch" not in sys.modules
print({name: (type(array).__name__, str(array.dtype)) for name, array in decoded.items()})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    expected = {"a": ("ndarray", "float32"), "b": ("ndarray", "float16"), "n": ("ndarray", "int64")}
    assert done.stdout == f"{expected}\n", done.stderr
    like = {"a": np.ones(1000, np.float32), "b": np.ones(50, np.float16), "n": np.array(3)}
    assert klms.decompress(message, like=like)["a"].dtype == np.float32
    with pytest.raises(SideInformationMismatch, match=r"'a' of type <f4 .* is in `like` only"):
        klms.decompress(message, like={**update, "a": update["a"].float()})


def test_bfloat16_is_rounded_as_torch_rounds():
    torch = pytest.importorskip("torch")
    numbers = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    numbers[:4] = 1.00390625, 1.01171875, -1.00390625, 0.0  # in the middle of two
    ours = as_tensor(bfloat16_of(numbers))
    assert torch.equal(ours, torch.from_numpy(numbers).to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5, 0), (17, 19)])
def test_one_array_comes_back_as_one(dtype, shape):
    array = np.full(shape, 0.5, dtype=dtype)
    decoded = klms.decompress(klms.compress(array, 8.0, key=KEY), key=KEY)
    assert isinstance(decoded, np.ndarray)
    assert decoded.shape == shape
    assert decoded.dtype == np.dtype(dtype).newbyteorder("<")
    if array.size > 10:
        np.testing.assert_allclose(decoded, array, atol=0.2)


@pytest.mark.parametrize("update", [{}, {"steps": np.array([1, 2])}, {"mask": np.array([[True], [False]])}])
def test_what_is_no_update_is_sent_unchanged(update):
    decoded = klms.decompress(klms.compress(update, key=KEY), key=KEY)
    assert decoded.keys() == update.keys()
    for name, array in update.items():
        np.testing.assert_array_equal(decoded[name], array)
        assert decoded[name].dtype == array.dtype


def test_the_mean_is_the_update():
    update = np.random.default_rng(0).standard_t(3, 2000).astype(np.float32)
    total = np.zeros(2000)
    for n in range(400):
        key = SharedKey(1, 1, n)
        total += klms.decompress(klms.compress(update, 0.5, key=key, rng=np.random.default_rng(n)), key=key)
    slope = float(total / 400 @ update / (update @ update))
    assert slope == pytest.approx(1, abs=0.03)  # the noise of the slope is below 0.006


def test_heavy_tails_are_unbiased_too():
    """Where what is sent apart was accepted by its length, entries came back 3 % too small."""
    update = (np.random.default_rng(3).laplace(0, 1, 8192) ** 3).astype(np.float32)
    slopes = []
    for n in range(400):
        key = SharedKey(3, 1, n)
        decoded = klms.decompress(klms.compress(update, 0.3, key=key, rng=np.random.default_rng(n)), key=key)
        slopes.append(float(decoded @ np.sign(update)) / float(np.abs(update).sum()))
    assert abs(np.mean(slopes) - 1) < 4 * np.std(slopes) / 20


@pytest.mark.parametrize("size", [1e-41, 1e-30, 1e-19, 1e-10, 1e10, 1e11])
def test_magnitudes_are_kept_or_vanish(size):
    update = (np.random.default_rng(0).standard_normal(10_000) * size).astype(np.float32)
    message = klms.compress(update, 1.0, key=KEY)
    assert len(message) < 1300
    decoded = klms.decompress(message, key=KEY).astype(float)
    slope = float(decoded @ update.astype(float) / (update.astype(float) @ update.astype(float)))
    assert slope == pytest.approx(1 if size > 1e-20 else 0, abs=0.05)


def test_float16_stays_finite():
    decoded = klms.decompress(klms.compress(np.full(1000, 60000, dtype=np.float16), 0.5, key=KEY), key=KEY)
    assert decoded.dtype == np.float16
    assert np.isfinite(decoded).all()


def test_rows_of_an_embedding_are_found_at_low_rates():
    rng, update = np.random.default_rng(0), np.zeros((20_000, 64), dtype=np.float32)
    update[rng.choice(20_000, 100, replace=False)] = rng.normal(0, 0.01, (100, 64))
    decoded = klms.decompress(klms.compress(update, 0.01, key=KEY), key=KEY)
    assert float(((decoded - update) ** 2).sum()) < 5 * float((update**2).sum())


def test_given_randomness_makes_the_bytes_repeatable():
    update = {"a": np.random.default_rng(0).standard_normal(5000).astype(np.float32)}
    messages = [klms.compress(update, key=KEY, rng=np.random.default_rng(4), threads=n) for n in (1, 2)]
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("update", "bits", "error", "words"),
    [
        (np.zeros(3000), 9.0, InvalidArgument, "from 0.0001 to 8"),
        (np.full(3000, np.nan), 1.0, TrainingDiverged, "lower the learning rate$"),
        (np.full(3000, np.inf), 0.1, TrainingDiverged, "or raise the bits per parameter: at 0.1, .* 6.7 times"),
        (np.full(3000, 1e300), 1.0, TrainingDiverged, "learning rate"),
        (np.full(3000, np.longdouble("1e4000")), 1.0, TrainingDiverged, "learning rate"),
    ],
)
def test_what_cannot_be_sent_is_explained(update, bits, error, words):
    with pytest.raises(error, match=words):
        klms.compress(update, bits, key=KEY)


def test_another_key_another_version_and_other_bytes_are_refused():
    message = klms.compress(np.ones(3000, dtype=np.float32), key=KEY)
    with pytest.raises(SideInformationMismatch, match="another key"):
        klms.decompress(message, key=SharedKey(7, 1, 3))
    with pytest.raises(UnsupportedMessage, match="version 2"):
        klms.decompress(message[:2] + b"\x02" + message[3:], key=KEY)
    with pytest.raises(CorruptMessage, match="KX"):
        klms.decompress(b"KL" + message[2:], key=KEY)
    with pytest.raises(CorruptMessage, match="expected: update"):
        klms.decompress(replace(Frame.from_bytes(message, Kind.UPDATE), kind=Kind.REPLY).to_bytes(), key=KEY)


def test_every_flipped_bit_is_found():
    """Also in names, and in arrays that are sent unchanged."""
    message = klms.compress({"a": np.ones(300, np.float32), "n": np.arange(3)}, key=KEY)
    for bit in range(8 * len(message)):
        flipped = bytearray(message)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(KLMSError):
            klms.decompress(bytes(flipped), key=KEY)


def test_a_message_may_not_take_more_memory_than_allowed():
    message = klms.compress({"a": np.ones(3000, dtype=np.float16), "b": np.ones(10, dtype=np.int8)}, key=KEY)
    most = 4 * 3000 + 10  # float16 numbers are float32 first
    assert len(klms.decompress(message, key=KEY, max_bytes=most)) == 2
    with pytest.raises(InvalidArgument, match=r"12,010 bytes, and 12,009 are allowed.*max_bytes="):
        klms.decompress(message, key=KEY, max_bytes=most - 1)


MODEL = {"a": np.ones((30, 40), dtype=np.float32), "b": np.arange(5), "c": np.zeros(3, dtype=np.float16)}


@pytest.mark.parametrize(
    ("like", "words"),
    [
        ({**MODEL, "d": np.zeros(3)}, r"'d' of type <f8 and shape \(3,\) is in `like` only"),
        ({"a": MODEL["a"], "b": MODEL["b"]}, "'c' of type <f2.* is in the message only"),
        ({**MODEL, "a": MODEL["a"].T}, "'a' of type <f4"),
        ({**MODEL, "b": MODEL["b"].astype(np.int32)}, "'b' of type <i4.* is in `like` only"),
        (MODEL["a"], "`like` a dictionary of arrays, or the reverse"),
    ],
)
def test_a_message_for_other_arrays_than_expected_is_refused(like, words):
    message = klms.compress(MODEL, 2.0, key=KEY)
    reordered = {name: MODEL[name].astype(MODEL[name].dtype.newbyteorder(">")) for name in "cba"}
    assert list(klms.decompress(message, key=KEY, like=reordered)) == ["a", "b", "c"]
    assert len(klms.decompress(message, key=KEY, like=MODEL)) == 3
    with pytest.raises(SideInformationMismatch, match=words):
        klms.decompress(message, key=KEY, like=like)


def test_what_is_expected_may_be_larger_than_what_strangers_may_send(monkeypatch):
    monkeypatch.setattr(klms.compression, "FREE_BYTES", 1000)
    zeros = {"a": np.zeros(100_000, dtype=np.float32)}
    message = klms.compress(zeros, 0.001, key=KEY)
    with pytest.raises(InvalidArgument, match=r"400,000 bytes.*like="):
        klms.decompress(message, key=KEY)
    assert klms.decompress(message, key=KEY, like=zeros)["a"].size == 100_000
    with pytest.raises(InvalidArgument, match="1,000 are allowed"):
        klms.decompress(message, key=KEY, like=zeros, max_bytes=1000)
    usual = klms.compress(np.ones(100_000, dtype=np.float32), 0.05, key=KEY)  # 640 bytes of memory for each byte
    assert klms.decompress(usual, key=KEY).size == 100_000


def forged(arrays: dict[str, np.ndarray], meta: object, rest: bytes) -> bytes:
    asked = Frame.from_bytes(klms.compress({}, key=KEY), Kind.UPDATE)
    return replace(asked, body=describe(arrays, meta) + rest).to_bytes()


@pytest.mark.parametrize(
    ("arrays", "meta", "rest"),
    [
        ({"a": np.zeros(2, np.float32)}, None, b""),
        ({"a": np.zeros(2, np.int32)}, None, bytes(7)),
        ({"a": np.zeros(2, np.int32)}, None, bytes(9)),
        ({"a": np.zeros(2, np.int32)}, "array", bytes(8)),
        ({"": np.zeros(2, np.int32), "a": np.zeros(0)}, "array", bytes(8)),
        ({}, "array", b""),
        ({"a": np.broadcast_to(np.float32(0), (1 << 34,))}, None, b""),
    ],
)
def test_forged_messages_are_refused(arrays, meta, rest):
    with pytest.raises(KLMSError):
        klms.decompress(forged(arrays, meta, rest), key=KEY)


def test_damaged_messages_raise_typed_errors():
    rng = np.random.default_rng(0)
    update = {"a": rng.standard_t(2, 3000).astype(np.float32), "n": np.array(3)}
    message, other = (klms.compress(update, bits, key=KEY) for bits in (1.0, 2.0))
    for _ in range(400):
        try:
            decoded = klms.decompress(mutate(message, other, rng), key=KEY)
        except KLMSError:
            continue
        assert set(decoded) == {"a", "n"}


# --- messages that carry their own key


def test_a_message_carries_its_own_key_at_no_cost_in_bytes():
    update = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    own, other = klms.compress(update, 2.0), klms.compress(update, 2.0)
    assert own[12:20] != other[12:20]
    assert abs(len(own) - len(klms.compress(update, 2.0, key=KEY))) < 20
    decoded = klms.decompress(own)
    assert np.square(decoded - update).sum() < 0.15 * np.square(update).sum()
    assert not np.array_equal(decoded, klms.decompress(other))


GOLDEN = bytes.fromhex(
    "4b58010800000000010000005f82c2d9cfeb0fa3"  # frame: kind 8, numbers 0 and 1, the seed
    "013800000078daab56ca4bcc4d2d56b28a56528ad5512aa92c80706cd24c40fce28c448840b4692c909b9b5a92a864a59458549458a9540b"
    "00343f12bf"  # description: one array of five float32 entries, without a name
    "4b42020c050000000810450001737e0000000026ab4bec9ef989d7"  # message of the dense scheme
    "bf51d5a6"
)


def test_a_message_with_its_own_key_is_decoded_as_by_earlier_releases():
    decoded = klms.decompress(GOLDEN)
    expected = [-2.6290369033813477, 0.32862961292266846, -0.2921152114868164, 1.0589176416397095, 2.0082919597625732]
    assert decoded.tolist() == expected
    assert klms.inspect(GOLDEN).carries_key


def test_the_seed_of_a_message_comes_from_the_generator():
    update = np.ones(3000, dtype=np.float32)
    messages = {klms.compress(update, rng=np.random.default_rng(3)) for _ in range(2)}
    assert len(messages) == 1


def test_keys_and_messages_that_do_not_match_are_explained():
    keyed, own = (klms.compress(np.ones(100, dtype=np.float32), key=key) for key in (KEY, None))
    with pytest.raises(SideInformationMismatch, match="pass the key="):
        klms.decompress(keyed)
    with pytest.raises(SideInformationMismatch, match="carries its own key"):
        klms.decompress(own, key=KEY)
    newer = replace(inspect_update(own)[0], second=2, body=own[20:-4]).to_bytes()
    with pytest.raises(UnsupportedMessage, match="newer release"):
        klms.decompress(newer)


# --- budgets in bytes


@pytest.mark.parametrize("budget", [150, 151, 400, 5000, 1 << 20])
@pytest.mark.parametrize("kind", ["normal", "heavy", "signs", "zeros"])
def test_a_message_never_exceeds_its_budget(budget, kind):
    rng = np.random.default_rng(budget)
    x = {
        "normal": rng.standard_normal(4000),
        "heavy": rng.standard_t(1.5, 4000),
        "signs": rng.choice([-1.0, 1.0], 4000),
        "zeros": np.zeros(4000),
    }[kind]
    update = {"a": x.astype(np.float32).reshape(40, 100), "n": np.arange(3)}
    message = klms.compress(update, budget_bytes=budget)
    assert len(message) <= budget
    if kind != "zeros" and budget < 1000:
        assert len(message) > 0.8 * budget
    assert klms.decompress(message)["n"].tolist() == [0, 1, 2]


def test_one_length_is_named_and_it_is_a_number():
    update = {"a": np.ones(3000, np.float32)}
    for compress in (klms.compress, klms.ErrorFeedback().compress):
        with pytest.raises(InvalidArgument, match="both bits_per_parameter and budget_bytes set the length"):
            compress(update, bits_per_parameter=1, budget_bytes=500)
        with pytest.raises(InvalidArgument, match=r"bits_per_parameter must be a number, got '0\.1'"):
            compress(update, bits_per_parameter="0.1")
        with pytest.raises(InvalidArgument, match="budget_bytes must be an integer"):
            compress(update, budget_bytes="500")


def test_a_budget_that_cannot_be_met_is_explained():
    with pytest.raises(InvalidArgument, match=r"budget_bytes is 60, but names, shapes and arrays .* take \d+ bytes"):
        klms.compress({"a": np.ones(300, np.float32), "n": np.arange(100)}, budget_bytes=60)
    with pytest.raises(InvalidArgument, match=r"for the entries of 300 parameters, which need .*: raise it by"):
        klms.compress({"a": np.ones(300, np.float32)}, budget_bytes=90)


@pytest.mark.parametrize("threads", [-1, 0, 1025, "2", 1.5, True])
def test_threads_are_counted_from_one(threads):
    """Also where one thread would do, and where nothing is coded."""
    update, file = {"n": np.arange(3)}, io.BytesIO()
    message = klms.compress(update)
    for call in (
        lambda: klms.compress(update, threads=threads),
        lambda: klms.compress(np.ones(3_000_000, np.float32), threads=threads),
        lambda: klms.compress_to(file, update, threads=threads),
        lambda: klms.ErrorFeedback().compress(update, threads=threads),
        lambda: klms.decompress(message, threads=threads),
        lambda: klms.decompress(io.BytesIO(message), threads=threads),
        lambda: klms.decompress_from(io.BytesIO(message), lambda *part: None, threads=threads),
        lambda: klms.Codec(threads=threads),
    ):
        with pytest.raises(InvalidArgument, match=r"threads must be (an integer|in \[1, 1024\]), got"):
            call()
    assert file.getvalue() == b""
    assert klms.decompress(klms.compress(update, threads=np.int64(2)), threads=np.int64(2))["n"].tolist() == [0, 1, 2]


# --- files


class Pipe(io.BytesIO):
    """A file in which one cannot go back."""

    def seekable(self) -> bool:
        return False

    def seek(self, *place: int) -> int:
        raise io.UnsupportedOperation

    def tell(self) -> int:
        raise io.UnsupportedOperation


def test_a_file_holds_the_same_message():
    update = {"a": np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32), "n": np.arange(3)}
    file, options = io.BytesIO(), {"key": KEY, "effort": "fast"}
    length = klms.compress_to(file, update, 2.0, rng=np.random.default_rng(1), **options)
    message = klms.compress(update, 2.0, rng=np.random.default_rng(1), **options)
    assert file.getvalue() == message
    assert length == len(message)
    expected = klms.decompress(message, key=KEY)
    for source in (file, Pipe(message), memoryview(message), bytearray(message)):
        decoded = klms.decompress(source, key=KEY)
        np.testing.assert_array_equal(decoded["a"], expected["a"])
    for other, kind in (("message.klms", "str"), (io.StringIO("text"), "StringIO")):
        with pytest.raises(InvalidArgument, match=f"bytes or a binary file .*'rb'.*, got {kind}"):
            klms.decompress(other, key=KEY)


# --- in parts


@pytest.mark.parametrize("most", [None, 700])
def test_a_message_is_decoded_part_by_part(monkeypatch, most):
    """With chunks of 700 entries, arrays come in several parts, which are those of the whole."""
    if most is not None:
        monkeypatch.setattr(chunks, "CHUNK", most)
    rng = np.random.default_rng(0)
    update = {
        "a": rng.standard_normal((30, 40)).astype(np.float32),
        "half": rng.standard_normal(500).astype(np.float16),
        "none": np.zeros((0, 3)),
        "n": np.arange(6).reshape(2, 3),
        "one": np.float64(2.5) * np.ones(()),
    }
    message = klms.compress(update, 2.0, key=KEY, rng=rng)
    parts = {}

    def take(name, start, part):
        assert start == sum(one.size for one in parts.get(name, []))
        assert part.ndim == 1
        parts.setdefault(name, []).append(part)

    assert klms.decompress_from(io.BytesIO(message), take, key=KEY) is None
    expected = klms.decompress(message, key=KEY)
    assert parts.keys() == expected.keys()
    assert len(parts["none"]) == 1
    assert (len(parts["a"]) > 1) == (most is not None)
    for name, array in expected.items():
        whole = np.concatenate(parts[name])
        assert whole.dtype == array.dtype
        np.testing.assert_array_equal(whole.reshape(array.shape), array)


def test_decoding_in_parts_refuses_what_decoding_refuses():
    message = klms.compress(np.ones(3000, np.float32), 1.0)
    taken = []

    def decode(data, **given):
        klms.decompress_from(io.BytesIO(data), lambda *part: taken.append(part), **given)

    with pytest.raises(CorruptMessage):
        decode(message[:-1])
    with pytest.raises(InvalidArgument, match="12,000 bytes, and 11,999 are allowed: pass a larger max_bytes="):
        decode(message, max_bytes=11_999)
    with pytest.raises(SideInformationMismatch):
        decode(message, key=KEY)
    assert taken == []
    decode(message, max_bytes=12_000)
    assert [name for name, *_ in taken] == [""]


# --- progress


@pytest.mark.parametrize("threads", [1, 2])
def test_progress_is_told_of_every_step_and_changes_no_byte(threads):
    update, told = np.random.default_rng(0).standard_normal(600_000, dtype=np.float32), []

    def compressed(**given) -> bytes:
        return klms.compress(update, 0.1, key=KEY, threads=threads, rng=np.random.default_rng(1), **given)

    message = compressed(progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert message == compressed()
    decoded = klms.decompress(message, key=KEY, threads=threads, progress=lambda *step: told.append(step))
    assert told[3:] == told[:3]
    np.testing.assert_array_equal(decoded, klms.decompress(message, key=KEY))


def test_work_can_be_given_up_from_its_progress():
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        klms.compress(np.ones(10_000, dtype=np.float32), 0.1, key=KEY, progress=stop)


def test_a_bar_is_drawn_on_terminals_only(capsys, monkeypatch):
    update = np.ones(10_000, dtype=np.float32)
    message = klms.compress(update, 0.1, key=KEY, progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    klms.decompress(message, key=KEY, progress=True)
    assert "decompressing" in capsys.readouterr().err


@pytest.mark.parametrize("key", [7, (1, 2, 3), "secret"])
def test_what_is_no_key_is_told_what_a_key_is(key):
    update = np.ones(100, dtype=np.float32)
    message = klms.compress(update, key=KEY)
    p, blocks = klms.Bernoulli(np.full(100, 0.5)), klms.fixed_blocks(100, 25)
    encoded = klms.Codec().encode(p, p, blocks, key=KEY, rng=np.random.default_rng(0))
    for call in (
        lambda: klms.compress(update, key=key),
        lambda: klms.decompress(message, key=key),
        lambda: klms.Codec().encode(p, p, blocks, key=key, rng=np.random.default_rng(0)),
        lambda: klms.Codec().decode(encoded, p, key=key, blocks=blocks),
    ):
        with pytest.raises(InvalidArgument, match=r"key must be a klms.SharedKey\(seed=..., round=..., client=...\)"):
            call()


@pytest.mark.parametrize("bits", [0.0001, 0.01, 0.1, 1.0, 8.0])
def test_the_largest_entries_that_are_encoded_are_decoded_too(bits):
    for update in (np.full(20_000, 1e12), np.eye(150) * 1e12):
        for number in range(4):
            key = SharedKey(number, 1, 2)
            klms.decompress(klms.compress(update.astype(np.float32), bits, key=key), key=key)
    with pytest.raises(klms.KLMSError, match=r"above 1e\+12"):
        klms.compress(np.full(20_000, 2e12, np.float32), bits)
