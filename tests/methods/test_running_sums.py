"""The server adds messages up as they come: the results are those of keeping them all, the memory is not."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from klms import (
    Bernoulli,
    Codec,
    Decoded,
    MessageInfo,
    SharedKey,
    adaptive_blocks,
    aggregate_blocks,
    fixed_blocks,
)
from klms.compressors.block_coder import BlockLearner, BlockSettings
from klms.compressors.plain import Float32
from klms.compressors.schemes import SCHEMES
from klms.learning.examples import Schedule
from klms.methods.base import Method, Received, Upload
from klms.methods.dense import Dense
from klms.methods.fedpm import FedPM, FedPMSettings
from tests.support.training import learner_without_model, play_round
from tests.support.vectors import flat

D = 5000


def header(mean_kl: float = 5.0) -> MessageInfo:
    """Return the header of a real message, with another KL."""
    codec, p, blocks, key = Codec(bits=2), Bernoulli(np.full(D, 0.5)), fixed_blocks(D, 100), SharedKey(1, 1, 1)
    message = codec.encode(p, p, blocks, key=key, rng=np.random.default_rng(0))
    found = codec.read(message, p, key=key, blocks=blocks).header
    return replace(found, mean_kl=mean_kl)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_the_running_mean_is_that_of_all_vectors(dtype):
    rng = np.random.default_rng(0)
    vectors = [(10 * rng.random(D)).astype(dtype) for _ in range(33)]
    received = Received(D, Float32(flat(D)).learner({}))
    for vector in vectors:
        received.add(Decoded(vector), 1000)
    assert received.count == 33
    np.testing.assert_array_equal(received.total, np.sum(vectors, axis=0, dtype=np.float64))
    np.testing.assert_array_equal(received.take_mean(), np.mean(vectors, axis=0, dtype=np.float64))
    assert received.side() == {}
    assert received.statistics() == {"bits_per_parameter": pytest.approx(8 * 1000 / D)}


def test_the_running_mean_is_weighted():
    received = Received(D, Float32(flat(D)).learner({}))
    for value, weight in ((1.0, 1.0), (4.0, 0.5)):
        received.add(Decoded(np.full(D, value, np.float32)), 1000, weight)
    assert received.count == 2
    np.testing.assert_array_equal(received.take_mean(), np.full(D, 2.0))


@pytest.mark.parametrize("by", ["location", "count"])
def test_merged_blocks_are_those_of_all_maps(by):
    rng = np.random.default_rng(0)
    maps = [adaptive_blocks(rng.exponential(0.02, D), 5.0, 512) for _ in range(21)]
    assert len({len(blocks) for blocks in maps}) > 1
    coder = BlockSettings(target=5.0, max_size=512, low=0.6, high=1.6, aggregate=by).coder(D, None)
    side = coder.start()
    learner = BlockLearner(coder, side)
    for blocks in maps:
        learner.add(Decoded(np.zeros(D, dtype=np.uint8), header(), blocks))
    after = learner.finish()
    np.testing.assert_array_equal(after["block_bounds"], aggregate_blocks(maps, by).bounds)
    assert side["block_update"]
    assert not after["block_update"]


@pytest.mark.parametrize(("kls", "update"), [((4.0, 6.0), False), ((4.0, 13.0), True), ((1.0, 2.0), True)])
def test_the_mean_kl_decides_on_the_next_round(kls, update):
    coder = BlockSettings(target=5.0, max_size=512, low=0.6, high=1.6).coder(D, None)
    side = {**coder.start(), "block_update": np.array(False)}
    learner = BlockLearner(coder, side)
    for kl in kls:
        learner.add(Decoded(np.zeros(D, dtype=np.uint8), header(kl), adaptive_blocks(np.full(D, 0.01), 5.0)))
    after = learner.finish()
    assert bool(after["block_update"]) == update
    np.testing.assert_array_equal(after["block_bounds"], side["block_bounds"])


def peak_bytes(method: Method, messages: list[bytes]) -> int:
    """Return the most memory that Python and NumPy hold while the messages are decoded and aggregated."""
    state = method.init()
    tracemalloc.start()
    try:
        play_round(method, state, [Upload(client, message, {}) for client, message in enumerate(messages)])
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("scheme", ["eden", "qsgd-klms", "mask-klms", "signsgd-klms"])
def test_memory_does_not_grow_with_the_number_of_clients(scheme):
    """Traced and not measured at the system, where the arenas of threads are worth a megabyte or two of noise."""
    d = 100_000
    learner = learner_without_model(d)
    compressor = SCHEMES[scheme].create(learner.layout, {})
    schedule = Schedule(1, 1, 0.1, "sgd")
    if scheme == "mask-klms":
        method: Method = FedPM(learner, 1, 30, compressor, schedule, FedPMSettings())
    else:
        method = Dense(learner, 1, 30, compressor, schedule, 1.0)
    state = method.init()
    rng = np.random.default_rng(0)
    update = (rng.beta(60, 60, d) if scheme == "mask-klms" else rng.normal(0, 0.01, d)).astype(np.float32)
    messages = [compressor.encode(update, state.shared, key=method.key(1, client), rng=rng) for client in range(30)]
    peak_bytes(method, messages[:2])  # compiles
    few, many = peak_bytes(method, messages[:10]), peak_bytes(method, messages)
    assert few > 8 * d  # the sum alone
    assert abs(many - few) < 4 * d
    assert many < 6 * 4 * d  # beyond the state before the round, in bytes of a float32 model
