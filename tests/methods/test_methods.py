import numpy as np
import pytest

from klms import KLMSError, inspect
from klms.compressors.block_coder import BlockSettings
from klms.compressors.klms_gaussian import KLMSGaussian
from klms.compressors.mask import Mask
from klms.compressors.plain import Float32
from klms.methods.base import Upload
from klms.methods.fedpm import FedPM
from klms.methods.langevin import Langevin, LangevinSettings, noise_std
from klms.methods.state import State
from klms.methods.table import METHODS
from tests.support.training import examples, learner_without_model, method_of, play_round, train_clients
from tests.support.vectors import flat


@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_through_rounds(name):
    """State in, bytes out, state in again: and it is a function of the state's bytes."""
    method = method_of(name)
    state = method.init()
    for number in range(1, 4):
        received = State(state.round, State.from_bytes(state.to_bytes()).shared)
        uploads = train_clients(method, received, examples())
        again = method.client_update(received, 1, examples(), method.private_rng(number, 1))
        assert again.message == uploads[1].message
        outcome = play_round(method, state, uploads)
        assert outcome.metrics["bits_per_parameter"] == pytest.approx(
            np.mean([8 * len(u.message) / method.layout.d for u in uploads])
        )
        metrics, state = method.evaluate(outcome.state, examples())
        assert state.round == number
        assert 0 <= metrics["accuracy"] <= 1
        assert metrics["nll"] > 0
    restored = State.from_bytes(state.to_bytes())
    assert set(restored.private) == set(state.private)
    for name_, array in state.shared.items():
        np.testing.assert_array_equal(restored.shared[name_], array)


@pytest.mark.parametrize("name", ["fedpm-klms", "qsgd-klms", "signsgd-klms"])
def test_klms_methods_train(name):
    learning = {
        "fedpm-klms": {"lr": 0.1, "optimizer": "adam"},
        "qsgd-klms": {"server_lr": 1.0, "lr": 0.1},
        "signsgd-klms": {"server_lr": 0.01, "lr": 0.1, "scale": 1.0},
    }[name]
    method = method_of(name, epochs=3, **learning)
    state = method.init()
    before, _ = method.evaluate(state, examples())
    for _ in range(8):
        uploads = train_clients(method, state, examples())
        state = play_round(method, state, uploads).state
    after, _ = method.evaluate(state, examples())
    assert after["nll"] < before["nll"]
    assert max(len(u.message) for u in uploads) < method.layout.d / 8


def test_a_message_of_another_round_or_client_is_refused():
    method = method_of("fedpm-klms")
    state = method.init()
    upload = method.client_update(state, 1, examples(), method.private_rng(1, 1))
    play_round(method, state, [upload])
    with pytest.raises(KLMSError):
        play_round(method, state, [Upload(2, upload.message, upload.seconds)])
    later = State(1, state.shared, state.private)
    with pytest.raises(KLMSError):
        play_round(method, later, [upload])


def test_bayes_agg():
    """theta = (alpha - 1) / (alpha + beta - 2): the mean mask after a reset, the mean of all since it otherwise."""
    method = method_of("fedpm", reset=2, margin=0.001)
    assert isinstance(method, FedPM)
    state = method.init()
    means = []
    for number in range(1, 4):
        uploads = train_clients(method, state, examples(20))
        masks = [Mask(method.layout).unpack(upload.message, method.key(number, upload.client)) for upload in uploads]
        means.append(np.mean(masks, axis=0))
        state = play_round(method, state, uploads).state
        expected = means[0] if number == 1 else (means[0] + means[1]) / 2 if number == 2 else means[2]
        np.testing.assert_allclose(state.shared["theta"], np.clip(expected, 0.001, 0.999), atol=1e-6)


def langevin(compressor, clients: int, gamma: float) -> Langevin:
    settings = LangevinSettings(gamma=gamma, precision=0.0)
    arrives = isinstance(compressor, KLMSGaussian)
    d = compressor.coder.d if arrives else compressor.d
    return Langevin(learner_without_model(d), 3, clients, compressor, arrives, 1, settings)


def sgld_klms(d: int, clients: int, per_round: int, gamma: float) -> Langevin:
    coder = BlockSettings(bits=12, target=2.0, max_size=4096, low=0.5, high=2.0).coder(d, None)
    return langevin(KLMSGaussian(noise_std(gamma, clients, per_round), coder), clients, gamma)


@pytest.mark.parametrize(("clients", "per_round"), [(10, 10), (20, 5)])
def test_sgld_klms_has_the_noise_of_langevin_dynamics(clients, per_round):
    """Aggregate variance 2 gamma to 3 %, mean -gamma N/C sum H, for a known H."""
    d, gamma = 120_000, 1e-3
    method = sgld_klms(d, clients, per_round, gamma)
    rng = np.random.default_rng(0)
    gradients = rng.normal(0, 0.3 * noise_std(gamma, clients, per_round), (per_round, d)).astype(np.float32)
    state = method.init()
    uploads = [
        Upload(
            c,
            method.compressor.encode(gradients[c], state.shared, key=method.key(1, c), rng=method.private_rng(1, c)),
            {},
        )
        for c in range(per_round)
    ]
    step = play_round(method, state, uploads).state.vector("weights").astype(float)
    wanted = -gamma * clients / per_round * gradients.sum(axis=0, dtype=float)
    residual = step - wanted
    assert residual.var() == pytest.approx(2 * gamma, rel=0.03)
    assert step @ wanted / (wanted @ wanted) == pytest.approx(1.0, abs=0.04)  # its own deviation is 0.01
    assert abs(residual.mean()) < 5 * np.sqrt(2 * gamma / d)


@pytest.mark.parametrize("scheme", ["sgld", "sgld-klms"])
def test_a_gaussian_posterior_is_sampled(scheme):
    """Many independent two-dimensional chains at once: N clients hold quadratic potentials with a known product."""
    clients, gamma, chains = 4, 0.02, 4000
    precision = np.array([[2.0, 0.6], [0.6, 1.0]])
    center = np.array([1.0, -2.0])
    d = 2 * chains
    if scheme == "sgld":
        method = langevin(Float32(flat(d)), clients, gamma)
    else:
        coder = BlockSettings(bits=8, target=2.0, max_size=64, low=0.75, high=1.25).coder(d, None)
        method = langevin(KLMSGaussian(noise_std(gamma, clients, clients), coder), clients, gamma)
    state = method.init()
    seen = []
    for number in range(1, 441):
        point = state.vector("weights").reshape(chains, 2).astype(float)
        gradient = ((point - center) @ precision / clients).astype(np.float32).ravel()
        uploads = [
            Upload(
                c,
                method.compressor.encode(
                    gradient, state.shared, key=method.key(number, c), rng=method.private_rng(number, c)
                ),
                {},
            )
            for c in range(clients)
        ]
        state = play_round(method, state, uploads).state
        if number > 400 and number % 10 == 0:
            seen.append(state.vector("weights").reshape(chains, 2).astype(float))
    samples = np.concatenate(seen)
    np.testing.assert_allclose(samples.mean(axis=0), center, atol=0.08)
    # A step of size gamma inflates the covariance to (P - gamma P^2 / 2)^-1, which is within 3 % of P^-1 here.
    np.testing.assert_allclose(np.cov(samples.T), np.linalg.inv(precision), rtol=0.1, atol=0.05)


def test_klms_messages_report_their_kl():
    method = method_of("signsgd-klms")
    state = method.init()
    uploads = train_clients(method, state, examples())
    metrics = play_round(method, state, uploads).metrics
    infos = [inspect(u.message) for u in uploads]
    assert metrics["update_round"] == 1.0
    assert metrics["kl_bits_per_parameter"] == pytest.approx(
        np.mean([i.mean_kl * i.blocks / method.layout.d for i in infos])
    )
