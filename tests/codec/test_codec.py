import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klms import (
    Bernoulli,
    Blocks,
    Categorical,
    Codec,
    Gaussian,
    SharedKey,
    adaptive_blocks,
    fixed_blocks,
    inspect,
)
from klms.codec import Chosen, message
from klms.errors import InvalidArgument
from tests.codec import reference
from tests.codec.strategies import generators, keys, laws, partitions

KEY = SharedKey(seed=3, round=1, client=4)


@given(st.data(), laws(), keys, generators, st.integers(1, 16), st.sampled_from(["sample", "greedy", "matched"]))
@settings(max_examples=150)
def test_the_decoder_returns_the_candidate_that_the_encoder_chose(data, pair, key, rng, bits, selection):
    q, p = pair
    blocks = data.draw(partitions(p.d))
    send_blocks = data.draw(st.booleans())
    codec = Codec(bits=bits, selection=selection, memory=data.draw(st.integers(0, max(0, min(12, 16) - bits))))
    message = codec.encode(q, p, blocks, key=key, rng=rng, send_blocks=send_blocks)
    assert inspect(message).memory == codec.memory
    sample = Codec().decode(message, p, key=key, blocks=None if send_blocks else blocks)
    expected = reference.decode(message, p, key, blocks)
    np.testing.assert_array_equal(sample, expected)
    assert sample.dtype == (np.uint8 if isinstance(p, Bernoulli) else np.float32)


@given(st.data(), laws(max_d=12), keys, st.integers(1, 6))
@settings(max_examples=60)
def test_greedy_chooses_the_candidate_of_the_highest_score(data, pair, key, bits):
    q, p = pair
    blocks = data.draw(partitions(p.d))
    message = Codec(bits=bits, selection="greedy").encode(q, p, blocks, key=key)
    for m, chosen in enumerate(reference.parse(message).indices):
        start, end = int(blocks.bounds[m]), int(blocks.bounds[m + 1])
        scores = [
            sum(
                reference.score(q, p, start + o, u)
                for o, u in enumerate(reference.candidate_words(key, m, start, end - start, k))
            )
            for k in range(1 << bits)
        ]
        # Steps are rounded to 1/32000 of a group's sum, and cells of 12 bits stand for the normal's quantiles.
        slack = 0.02 + 0.03 * np.ptp(scores) * isinstance(p, Gaussian) + 1e-3 * np.ptp(scores)
        assert scores[chosen] >= max(scores) - slack


@given(st.data(), laws(), keys, st.integers(0, 2**32 - 1), st.integers(1, 16))
@settings(max_examples=60)
def test_encoding_is_choosing_and_writing(data, pair, key, seed, bits):
    q, p = pair
    blocks = data.draw(partitions(p.d))
    codec = Codec(bits=bits)
    chosen = codec.choose(q, p, blocks, key=key, rng=np.random.default_rng(seed))
    written = codec.write(chosen, p, blocks, key=key, send_blocks=True, scalars=[2.0])
    rng = np.random.default_rng(seed)
    assert written == codec.encode(q, p, blocks, key=key, rng=rng, send_blocks=True, scalars=[2.0])
    assert chosen.indices.tolist() == reference.parse(written).indices
    assert chosen.mean_kl == pytest.approx(q.kl(p).sum() / len(blocks), abs=1e-6)
    assert inspect(written).mean_kl == np.float32(chosen.mean_kl)
    assert inspect(codec.write(chosen, p, blocks, key=key, send_kl=False)).mean_kl == 0
    np.testing.assert_array_equal(
        codec.candidates(chosen.indices, p, blocks, key=key), reference.decode(written, p, key, blocks)
    )


@pytest.mark.parametrize("send_blocks", [True, False])
def test_reading_returns_what_the_message_says_and_parses_it_once(send_blocks, monkeypatch):
    q, p = training_like("categorical", 500)
    blocks = adaptive_blocks(q.kl(p), target=6.0)
    data = Codec(bits=6).encode(
        q, p, blocks, key=KEY, rng=np.random.default_rng(0), send_blocks=send_blocks, scalars=[0.5]
    )
    checksums, maps = [], []
    crc32, unpack_sizes = message.zlib.crc32, message.unpack_sizes
    monkeypatch.setattr(message.zlib, "crc32", lambda *a: checksums.append(a) or crc32(*a))
    monkeypatch.setattr(message, "unpack_sizes", lambda *a: maps.append(a) or unpack_sizes(*a))
    decoded = Codec().read(data, p, key=KEY, blocks=None if send_blocks else blocks)
    assert (len(checksums), len(maps)) == (1, int(send_blocks))
    assert decoded.blocks == blocks
    assert decoded.header == inspect(data)
    assert decoded.header.scalars == (0.5,)
    np.testing.assert_array_equal(decoded.vector, Codec().decode(data, p, key=KEY, blocks=blocks))


def training_like(family: str, d: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    if family == "bernoulli":
        theta = rng.uniform(0.05, 0.95, d)
        return Bernoulli(np.clip(theta + rng.normal(0, 0.07, d), 0, 1)), Bernoulli(theta)
    if family == "categorical":
        table = rng.dirichlet([2, 6, 2], d)
        tilted = table * np.exp(rng.normal(0, 0.2, table.shape))
        return Categorical(tilted / tilted.sum(1, keepdims=True), [-1, 0, 1]), Categorical(table, [-1, 0, 1])
    return Gaussian(rng.normal(0, 0.15, d), np.exp(rng.normal(0, 0.02, d))), Gaussian(rng.normal(0, 0.01, d), 1.0)


FAMILIES = ["bernoulli", "categorical", "gaussian"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("selection", ["sample", "greedy", "matched"])
@pytest.mark.parametrize("memory", [0, 3])
def test_same_bytes_for_any_number_of_threads(family, selection, memory):
    q, p = training_like(family, 150_000)
    blocks = adaptive_blocks(q.kl(p), target=6.0 if memory == 0 else 3.0)
    assert len(blocks) > 2 * 256 or memory == 0  # several segments
    messages, samples = [], []
    for threads in (1, 2, 3, None):
        codec = Codec(bits=6 if memory == 0 else 3, selection=selection, threads=threads, memory=memory)
        messages.append(codec.encode(q, p, blocks, key=KEY, rng=np.random.default_rng(5), send_blocks=True))
        samples.append(codec.decode(messages[-1], p, key=KEY).tobytes())
    assert len(set(messages)) == 1
    assert len(set(samples)) == 1


SCRIPT = """
import sys, numpy as np
sys.path.insert(0, {root!r})
from klms import Codec, adaptive_blocks
from tests.codec.test_codec import FAMILIES, KEY, training_like
for family in FAMILIES:
    q, p = training_like(family, 300)
    blocks = adaptive_blocks(q.kl(p), target=6.0)
    for bits, memory in ((1, 0), (4, 0), (9, 0), (3, 2)):
        for selection in ("sample", "greedy", "matched"):
            codec = Codec(bits=bits, selection=selection, memory=memory)
            message = codec.encode(q, p, blocks, key=KEY, rng=np.random.default_rng(5), send_blocks=True)
            print(message.hex(), codec.decode(message, p, key=KEY).tobytes().hex())
"""


def run_script(**environment: str) -> str:
    script = SCRIPT.format(root=str(Path(__file__).parents[2]))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_process_and_plain_python_compute_the_same_bytes():
    compiled = run_script()
    assert len(compiled.splitlines()) == 36
    assert run_script(NUMBA_DISABLE_JIT="1") == compiled
    assert run_script(NUMBA_NUM_THREADS="1", NUMBA_CPU_NAME="generic") == compiled


@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_rule_draws_private_randomness_and_nothing_else(family):
    q, p = training_like(family, 2000)
    blocks = fixed_blocks(2000, 100)
    state = np.random.get_state()[1].tobytes()  # noqa: NPY002
    messages = {Codec().encode(q, p, blocks, key=KEY, rng=np.random.default_rng(seed)) for seed in (1, 1, 2)}
    assert len(messages) == 2
    assert np.random.get_state()[1].tobytes() == state  # noqa: NPY002


@pytest.mark.parametrize("bits", range(1, 17))
def test_every_number_of_bits(bits):
    q, p = training_like("bernoulli", 40)
    blocks = Blocks([0, 7, 40])
    message = Codec(bits=bits).encode(q, p, blocks, key=KEY, rng=np.random.default_rng(0))
    assert inspect(message).index_bytes == -(-2 * bits // 8)
    np.testing.assert_array_equal(
        Codec().decode(message, p, key=KEY, blocks=blocks), reference.decode(message, p, KEY, blocks)
    )


def test_a_block_of_the_largest_size():
    q, p = training_like("bernoulli", 65536 + 10)
    blocks = Blocks([0, 65536, 65546])
    message = Codec(bits=3).encode(q, p, blocks, key=KEY, rng=np.random.default_rng(0), send_blocks=True)
    sample = Codec().decode(message, p, key=KEY)
    words = reference.candidate_words(KEY, 0, 0, 65536, reference.parse(message).indices[0])[-50:]
    assert sample[65486:65536].tolist() == [int(u < t) for u, t in zip(words, p.thresholds[0, 65486:], strict=False)]


def test_when_q_is_p_the_sample_is_one_of_p():
    _, p = training_like("bernoulli", 200_000)
    blocks = fixed_blocks(p.d, 500)
    message = Codec().encode(p, p, blocks, key=KEY, rng=np.random.default_rng(0))
    sample = Codec().decode(message, p, key=KEY, blocks=blocks)
    assert inspect(message).mean_kl < 1e-3
    assert sample.mean() == pytest.approx(p.probability.mean(), abs=0.005)


def test_saturated_q_gets_the_candidate_with_the_fewest_misses():
    p, q = Bernoulli(np.full(64, 0.5)), Bernoulli(np.ones(64))
    blocks = fixed_blocks(64, 8)
    message = Codec(bits=12).encode(q, p, blocks, key=KEY, rng=np.random.default_rng(0))
    assert Codec().decode(message, p, key=KEY, blocks=blocks).mean() > 0.98


def test_matched_carries_more_than_sample():
    q, p = training_like("gaussian", 400_000)
    delta = q.mean - p.mean
    blocks = adaptive_blocks(q.kl(p), target=6.0)
    carried = {}
    for selection in ("sample", "matched", "greedy"):
        message = Codec(bits=6, selection=selection).encode(q, p, blocks, key=KEY, rng=np.random.default_rng(0))
        sample = Codec().decode(message, p, key=KEY, blocks=blocks)
        carried[selection] = float((sample - p.mean) @ delta / (delta @ delta))
    assert carried["sample"] < carried["matched"] - 0.05
    assert carried["matched"] <= carried["greedy"]
    assert carried["sample"] == pytest.approx(0.69, abs=0.04)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"bits": 0}, "bits"),
        ({"bits": 17}, "bits"),
        ({"bits": 8.0}, "bits"),
        ({"threads": 2.5}, "threads"),
        ({"selection": "best"}, "selection"),
        ({"threads": 0}, "threads"),
    ],
)
def test_a_bad_setting_is_named(arguments, name):
    with pytest.raises(InvalidArgument, match=name):
        Codec(**arguments)


def test_encode_names_what_is_wrong():
    q, p = training_like("bernoulli", 10)
    other, _ = training_like("gaussian", 10)
    blocks = fixed_blocks(10, 5)
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidArgument, match="p must be"):
        Codec().encode(other, p, blocks, key=KEY, rng=rng)
    with pytest.raises(InvalidArgument, match="blocks"):
        Codec().encode(q, p, fixed_blocks(9, 5), key=KEY, rng=rng)
    for wrong in (None, 0, np.random.RandomState(0)):
        with pytest.raises(InvalidArgument, match="rng"):
            Codec().encode(q, p, blocks, key=KEY, rng=wrong)
    for scalars in ([[1.0, 2.0]], [np.nan], [0.0] * 65536):
        with pytest.raises(InvalidArgument, match="scalars"):
            Codec().encode(q, p, blocks, key=KEY, rng=rng, scalars=scalars)


@pytest.mark.parametrize("indices", [[0], [0, 0, 0], [0, 8]])
def test_indices_that_are_not_of_these_blocks_are_refused(indices):
    _, p = training_like("bernoulli", 10)
    blocks = fixed_blocks(10, 5)
    array = np.array(indices, dtype=np.uint16)
    with pytest.raises(InvalidArgument, match="2 uint16 numbers below 8"):
        Codec(bits=3).candidates(array, p, blocks, key=KEY)
    with pytest.raises(InvalidArgument, match="2 uint16 numbers below 8"):
        Codec(bits=3).write(Chosen(array, 1.0), p, blocks, key=KEY)
    with pytest.raises(InvalidArgument, match="blocks cover 9"):
        Codec(bits=3).candidates(array, p, fixed_blocks(9, 5), key=KEY)
