"""The baselines that are more than a compressor: error feedback, MARINA, FedMask, DP-REC."""

import math
from dataclasses import replace

import numpy as np
import pytest

from klms import inspect
from klms.compressors.mask import Mask, draw_mask
from klms.errors import InvalidArgument
from klms.methods.dense import Dense
from klms.methods.dp_rec import epsilon
from klms.methods.fedpm import FedMask
from klms.methods.marina import Marina
from klms.methods.state import State
from tests.support.downlink_runs import config_of, federation_of, trained
from tests.support.training import examples, method_of, play_round, train_clients


def test_error_feedback_remembers_what_was_not_sent():
    method = method_of("topk", keep=0.02)
    assert isinstance(method, Dense)
    state = method.init()
    first = method.client_update(state, 1, examples(), method.private_rng(1, 1))
    update, _ = method.local_update(state.vector("weights"), examples(), method.private_rng(1, 1))
    sent = method.compressor.decode(first.message, {}, key=method.key(1, 1)).vector
    np.testing.assert_allclose(first.keeps["residual"] + sent, update, atol=1e-7)

    # With it, what two rounds send adds up to what two rounds learned, but for what is still remembered.
    again = method.client_update(state, 1, examples(), method.private_rng(1, 1), first.keeps)
    sent = sent + method.compressor.decode(again.message, {}, key=method.key(1, 1)).vector
    np.testing.assert_allclose(again.keeps["residual"] + sent, 2 * update, atol=1e-6)
    forgetful = method.client_update(state, 1, examples(), method.private_rng(1, 1))
    assert forgetful.message != again.message


def test_error_feedback_is_a_setting_of_every_dense_method():
    for given, remembers in (({}, False), ({"error_feedback": True}, True)):
        method = method_of("signsgd", **given)
        upload = method.client_update(method.init(), 0, examples(), np.random.default_rng(0))
        assert ("residual" in upload.keeps) == remembers


def test_a_client_keeps_whatever_its_method_returns(monkeypatch):
    """Arrays of any name go from round to round, beside the residual."""
    honest = Dense.client_update

    def counting(self, state, client, data, rng, keeps):
        upload = honest(self, state, client, data, rng, keeps)
        times = keeps.get("times", np.zeros(1)) + 1
        return replace(upload, keeps={**upload.keeps, "times": times})

    monkeypatch.setattr(Dense, "client_update", counting)
    config = config_of("topk", clients=3, per_round=0, rounds=3)
    state = trained(config, federation_of(config))[-1].state
    assert {client: int(kept["times"][0]) for client, kept in state.clients.items()} == {0: 3, 1: 3, 2: 3}
    assert all("residual" in kept for kept in state.clients.values())


def test_what_clients_keep_is_in_the_checkpoint():
    state = State(3, {"weights": np.zeros(2)}, {}, {7: {"residual": np.array([1.0, 2.0], dtype=np.float32)}})
    restored = State.from_bytes(state.to_bytes())
    np.testing.assert_array_equal(restored.clients[7]["residual"], [1, 2])


def rounds(method, count: int, clients: int = 3) -> list[State]:
    states = [method.init()]
    for _ in range(count):
        uploads = train_clients(method, states[-1], examples(), clients)
        states.append(play_round(method, states[-1], uploads).state)
    return states


def test_marinas_direction_is_the_mean_update_when_nothing_is_lost():
    """With very many levels the differences arrive, and add up to what a full round would have sent."""
    method = method_of("marina", levels=2**20, bucket=16, full=1e-9, server_lr=0.5)
    assert isinstance(method, Marina)
    states = rounds(method, 4)
    order = [np.random.default_rng([method.seed, 0x04DE4, client]) for client in range(3)]
    wanted = np.mean([method.local_update(states[3].vector("weights"), examples(), rng)[0] for rng in order], axis=0)
    np.testing.assert_allclose(states[4].kept("direction"), wanted, atol=1e-4)
    assert np.abs(wanted).max() > 1e-2


def test_marina_is_full_as_often_as_it_says_and_first():
    method = method_of("marina", full=0.2)
    assert method.is_full(1)
    share = np.mean([method.is_full(number) for number in range(2, 1002)])
    assert share == pytest.approx(0.2, abs=0.06)  # 4.7 deviations
    sizes = {
        full: len(
            method.client_update(replace(method.init(), round=number), 0, examples(), np.random.default_rng(0)).message
        )
        for full, number in ((method.is_full(n + 1), n) for n in range(1, 30))
    }
    assert sizes[True] == 12 + 4 * method.layout.d
    assert sizes[False] < sizes[True] / 4


def test_fedmask_sends_thresholds_and_averages_them():
    method = method_of("fedmask", margin=0.01)
    assert isinstance(method, FedMask)
    state = method.init()
    uploads = train_clients(method, state, examples(20))
    again = method.client_update(state, 0, examples(20), method.private_rng(1, 0))
    assert again.message == uploads[0].message
    masks = [Mask(method.layout).unpack(upload.message, method.key(1, upload.client)) for upload in uploads]
    after = play_round(method, state, uploads).state
    np.testing.assert_allclose(after.vector("theta"), np.clip(np.mean(masks, axis=0), 0.01, 0.99), atol=1e-6)
    phi = np.array([0.2, 0.49, 0.5, 0.9], dtype=np.float32)
    assert draw_mask(phi, None).tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(method.sample_mask(after, 0), method.sample_mask(after, 1))


def test_epsilon_is_that_of_the_gaussian_mechanism():
    """Against the closed form of its Renyi divergence, alpha / (2 z^2), turned into (epsilon, delta) as usual."""
    for z, count in ((1.0, 1), (2.0, 10), (0.5, 3)):
        bound = min(count * a / (2 * z * z) + math.log(1 / 1e-5) / (a - 1) for a in np.linspace(1.01, 60, 3000))
        assert 0.6 * bound < epsilon(z, count, 1e-5) <= bound * 1.02
    assert epsilon(1.0, 10, 1e-5) > epsilon(1.0, 5, 1e-5) > epsilon(2.0, 5, 1e-5)


def test_dp_rec_clips_reports_and_centres_on_the_last_mean():
    method = method_of("dp-rec", clip=0.5, sigma=0.05, fixed=50, private_randomness="system")
    state = method.init()
    uploads = train_clients(method, state, examples())
    outcome = play_round(method, state, uploads)
    assert outcome.metrics["epsilon"] == pytest.approx(epsilon(0.05, 1, 1e-5), rel=1e-6)
    assert outcome.metrics["delta"] == 1e-5
    seeded = play_round(method_of("dp-rec", clip=0.5, sigma=0.05, fixed=50), state, uploads)
    assert not {"epsilon", "delta"} & set(seeded.metrics)  # its noise can be reproduced
    vectors = [method.decode(state, upload.client, upload.message).vector for upload in uploads]
    np.testing.assert_allclose(outcome.state.vector("mean"), np.mean(vectors, axis=0), atol=1e-6)
    assert "kl_bits_per_parameter" not in outcome.metrics  # no message says it
    assert all(inspect(upload.message).mean_kl == 0 for upload in uploads)
    assert method_of("dp-rec", selection="greedy").compressor.coder.codec.selection == "sample"
    for name in ("dp-rec", "marina"):
        with pytest.raises(InvalidArgument, match="error_feedback"):
            method_of(name, error_feedback=True)


def test_dp_rec_does_not_tell_the_loss_where_it_promises_privacy():
    method = method_of("dp-rec")
    assert method.loss_seen(0.5) == {"train_loss": 0.5}
    assert replace(method, seeded=False).loss_seen(0.5) == {}
    assert method.loss_seen(float("nan")) == {}
