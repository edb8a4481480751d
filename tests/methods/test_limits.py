"""What one client can do to the model, and what honest clients do not notice."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from klms import Bernoulli, Blocks, Codec, Decoded, SharedKey, fixed_blocks
from klms.codec import Chosen, Distribution
from klms.compressors.base import Side, SideLearner
from klms.compressors.block_coder import BlockCoder, BlockSettings
from klms.compressors.klms_gaussian import KLMSGaussian
from klms.compressors.plain import Float32
from klms.compressors.schemes import SCHEMES
from klms.errors import InvalidArgument, OutsizedMessage
from klms.exchange.robust import Robust
from klms.learning.examples import Schedule
from klms.methods.base import Received, Upload
from klms.methods.dense import Dense
from klms.methods.fedpm import FedPM, FedPMSettings
from klms.methods.limits import MessageBound
from klms.methods.state import State
from tests.support.training import learner_without_model, method_of, play_round
from tests.support.vectors import flat

D = 400
SCHEDULE = Schedule(1, 1, 0.1, "sgd")


def dense(robust: Robust | None = None) -> Dense:
    learner = learner_without_model(D)
    return Dense(learner, 1, 10, Float32(flat(D)), SCHEDULE, 1.0, robust=robust)


def updates(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(0, 0.1, (count, D)).astype(np.float32))


def played(method: Dense, state: State, vectors: list[np.ndarray]):
    number = state.round + 1
    uploads = [
        Upload(n, method.compressor.encode(v, {}, key=method.key(number, n), rng=np.random.default_rng(0)), {})
        for n, v in enumerate(vectors)
    ]
    return play_round(method, state, uploads)


def test_by_default_updates_are_averaged_to_the_bit_whatever_their_size():
    vectors = [*updates(8), 1e6 * updates(9)[8]]
    outcome = played(dense(), dense().init(), vectors)
    total = np.zeros(D)
    for vector in vectors:
        total += vector
    np.testing.assert_array_equal(outcome.state.shared["weights"], (total / 9).astype(np.float32))
    assert "clipped" not in outcome.metrics


@pytest.mark.parametrize("hostile", [1, 3])
@pytest.mark.parametrize("scale", [-1.0, -10.0, 1e6, 1e11])
def test_hostile_updates_hardly_move_a_robust_average(scale, hostile, caplog):
    common = np.random.default_rng(5).normal(0, 0.1, D).astype(np.float32)
    honest = [common + 0.2 * update for update in updates(10)]
    attacked = [np.float32(scale) * update for update in honest[:hostile]] + honest[hostile:]
    with caplog.at_level("INFO", "klms"):
        outcome = played(dense(Robust(0.3)), dense().init(), attacked)
    average = np.mean(honest[hostile:], axis=0)
    error = np.linalg.norm(outcome.state.shared["weights"] - average) / np.linalg.norm(average)
    assert error < 0.25
    assert np.linalg.norm(np.mean(attacked, axis=0) - average) > 2 * error * np.linalg.norm(average)
    assert outcome.metrics["clipped"] == 5
    assert "5 of 10 updates are clipped to the median norm" in caplog.text


def test_a_result_that_is_not_finite_is_thrown_away():
    method = dense()
    state = method.init()
    large = replace(state, shared={"weights": np.full(D, 9e11, dtype=np.float32)})
    outcome = played(method, large, [np.full(D, 9e11, dtype=np.float32)])
    assert outcome.undone
    assert outcome.state.round == 1
    np.testing.assert_array_equal(outcome.state.shared["weights"], large.shared["weights"])


@pytest.mark.parametrize("share", [0.1, 0.3, 0.49])
@pytest.mark.parametrize("clients", [1, 2, 3, 5, 6, 7, 12])
def test_of_equal_lengths_a_robust_average_is_the_mean_of_those_next_to_the_middle(share, clients):
    vectors = np.round(np.random.default_rng(0).normal(0, 2, (clients, 50)), 1).astype(np.float32)  # with ties
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cut = min(int(np.ceil(share * clients)), (clients - 1) // 2)
    middle = np.sort(vectors, axis=0)[cut : clients - cut].mean(axis=0, dtype=np.float64)
    nearest = np.argsort(np.linalg.norm(vectors - middle, axis=1))[: clients - cut]
    expected = vectors[nearest].mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(Robust(share).average(list(vectors)).vector, expected, atol=1e-6)


def test_clients_that_change_nothing_do_not_break_a_robust_average():
    average = Robust(0.2).average([np.zeros(D, dtype=np.float32)] * 6 + updates(3))
    assert average.clipped == 3
    assert not average.vector.any()


def test_langevin_dynamics_takes_no_robust_average():
    with pytest.raises(InvalidArgument, match="robust"):
        method_of("sgld", robust=0.4)


def message_of_any_indices(coder: BlockCoder, p: Distribution, side: Side, scalars: Sequence[float] = ()) -> bytes:
    """All that a client can say that keeps to the format."""
    blocks = Blocks(side["block_bounds"])
    indices = np.random.default_rng(1).integers(0, 1 << coder.codec.bits, len(blocks)).astype(np.uint16)
    return coder.codec.write(Chosen(indices, 0.0), p, blocks, key=SharedKey(1, 1, 0), scalars=scalars)


def test_freely_chosen_masks_move_theta_by_at_most_one_over_the_number_of_clients():
    learner = learner_without_model(D)
    masks = SCHEMES["mask-klms"].create(learner.layout, {"fixed": 50})
    method = FedPM(learner, 1, 4, masks, SCHEDULE, FedPMSettings())
    state = method.init()
    vector = method.decode(
        state, 0, message_of_any_indices(masks.coder, Bernoulli(np.full(D, 0.5)), state.shared)
    ).vector
    assert set(np.unique(vector)) == {0, 1}
    others = np.random.default_rng(0).integers(0, 2, (3, D)).astype(np.uint8)
    thetas = []
    for own in (vector, 1 - vector):
        received = Received(D, SideLearner({}))
        for mask in (own, *others):
            received.add(Decoded(mask), 1)
        thetas.append(method.aggregate(state, received).state.shared["theta"])
    assert np.abs(thetas[0] - thetas[1]).max() <= 1 / 4 + 1e-6


def test_freely_chosen_ternary_updates_are_multiples_of_norms_which_a_robust_average_clips():
    ternary, norm = SCHEMES["qsgd-klms"].create(learner_without_model(D).layout, {"fixed": 50}), 3e4
    side = ternary.start()
    message = message_of_any_indices(ternary.coder, ternary.p(side), side, [norm])
    decoded = ternary.decode(message, side, key=SharedKey(1, 1, 0))
    assert set(np.unique(decoded.vector)) == {-norm, 0.0, norm}
    received = Received(D, SideLearner({}), Robust(0.1))
    for one in (decoded, *map(Decoded, updates(3))):
        received.add(one, 1)
    assert np.linalg.norm(received.take_mean()) < 4


def test_freely_chosen_samples_of_a_gaussian_are_within_its_table():
    gaussian = KLMSGaussian(0.5, BlockSettings(fixed=50).coder(D, None))
    side = gaussian.start()
    message = message_of_any_indices(gaussian.coder, gaussian.p(side), side)
    assert np.abs(gaussian.decode(message, side, key=SharedKey(1, 1, 0)).vector).max() <= 0.5 * 4.4


def message(blocks: int, mean_kl: float = 6.0) -> bytes:
    """A message of a byte per block, a header of 28 bytes and a checksum of 4, whose blocks claim this KL each."""
    p, chosen = Bernoulli(np.full(blocks, 0.5)), Chosen(np.zeros(blocks, dtype=np.uint16), mean_kl)
    return Codec(bits=8).write(chosen, p, fixed_blocks(blocks, 1), key=SharedKey(1, 1, 0))


IDLE = message(1, mean_kl=0.0)


def refused(factor: float, messages: Sequence[bytes]) -> list[int]:
    """Return the places of the messages that the others of their round speak against."""
    bound, found = MessageBound(factor, messages), []
    for place, one in enumerate(messages):
        try:
            bound.check(one)
        except OutsizedMessage:
            found.append(place)
    return found


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([message(100)] * 9 + [message(3000)], [9]),
        ([message(100)] * 9 + [message(1000)], []),  # within the factor
        ([message(100)] * 9 + [message(100, mean_kl=200.0)], [9]),  # as long as the others: it lies, or says nothing
        ([message(100)] * 9 + [message(100, mean_kl=0.01)], []),
        ([message(100)] * 9 + [b"no message"], []),  # for the decoder to refuse
        ([message(3000)], []),
        ([message(10), message(3000)], []),  # of two, nobody knows which is right
        ([message(10), message(10), message(3000)], [2]),
        ([message(3000)] * 4 + [message(100)] * 5, [0, 1, 2, 3]),  # a coalition of less than half
        ([message(1)] * 4 + [message(1000)] * 5, []),  # one that makes itself small to have others refused
        ([IDLE] * 8 + [message(100), message(200)], []),
        ([IDLE] * 3, []),
        ([], []),
    ],
)
def test_messages_are_refused_that_most_others_are_small_against(messages, expected):
    assert refused(10.0, messages) == expected
    assert refused(0.0, messages) == []


def test_a_claim_of_kl_counts_where_it_is_more_than_the_bits_of_the_message():
    small = [message(10, mean_kl=0.01)] * 9
    assert refused(10.0, [*small, message(10, mean_kl=10.0)]) == []  # a thousand times their KL, and worth no refusal
    assert refused(10.0, [*small, message(10, mean_kl=400.0)]) == [9]
