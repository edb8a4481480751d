"""Few clients at few bits in both directions: steps are shortened as far as their noise demands."""

import math

import numpy as np
import pytest

from klms import SharedKey
from klms.compressors.layout import Layout
from klms.compressors.trellis import Trellis
from klms.engine.downlink import Downlink
from klms.exchange.step_length import noise_of_steps, step_length
from tests.support.downlink_runs import config_of, federation_of, trained

D = 1 << 13
LAYOUT = Layout(("a",), ((D,),))


def normal(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(D, dtype=np.float32)


def through(scheme: Trellis, vector: np.ndarray, number: int) -> np.ndarray:
    key, rng = SharedKey(2, number, 0), np.random.default_rng(number)
    return scheme.decode(scheme.encode(vector, {}, key=key, rng=rng), {}, key=key).vector


def test_the_noise_is_that_of_what_clients_average_and_the_server_codes():
    """Against the codec, whose error is somewhat above the limit for so few entries."""
    clients, x, coder, errors = 4, normal(1), Trellis(LAYOUT, 1.0, threads=1), []
    for number in range(20):
        average = np.mean([through(coder, x, 100 * number + client) for client in range(clients)], axis=0)
        step = through(coder, average.astype(np.float32), 100 * number + 99)
        errors.append(float(np.sum((step - x) ** 2) / (x @ x)))
    assert noise_of_steps([1.0] * clients, 1.0) < np.mean(errors) < 1.5 * noise_of_steps([1.0] * clients, 1.0)


def test_steps_are_whole_where_noise_is_bearable_and_shorter_with_fewer_clients_or_bits():
    for up, down in (([0.1] * 10, 0.1), ([0.1] * 3, 0.3), ([0.2] * 3, 0.2), ([1], 1), ([math.inf], 0.1), ([], 0.1)):
        assert step_length(up, down) == 1
    lengths = [step_length([0.1] * clients, 0.1) for clients in (10, 9, 5, 3, 1)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[1] > 0.95  # no sudden change
    assert 0 < step_length([0.005], 0.005) < step_length([0.005], 0.01) < lengths[-1]
    assert step_length([0.1] * 5, 0.1) < step_length([0.1] * 4 + [1.0], 0.1) < step_length([1.0] * 5, 0.1)


class AnxiousClients:
    """Clients whose updates are the larger, the further the model is from where they want it, in other directions."""

    def __init__(self, clients: int) -> None:
        self.clients, self.target, self.rounds = clients, normal(1), 0

    def mean_update(self, held: np.ndarray) -> np.ndarray:
        self.rounds += 1
        gap, coder = self.target - held, Trellis(LAYOUT, 0.1, threads=1)
        away = normal(self.rounds + 500) * np.float32(np.linalg.norm(gap) / np.linalg.norm(self.target))
        update = np.float32(0.05) * gap + np.float32(0.05) * away
        sent = [through(coder, update, 1000 * self.rounds + client) for client in range(self.clients)]
        return np.mean(sent, axis=0, dtype=np.float32)


def test_shorter_steps_keep_a_model_from_running_away():
    """The energy of the gap grows by `s^2 (1 + noise) 2 0.05^2` per round, and shrinks by `2 s 0.05`."""
    ends = {}
    for length in (1.0, step_length([0.1] * 3, 0.1)):
        clients, held, coder = AnxiousClients(3), np.zeros(D, dtype=np.float32), Trellis(LAYOUT, 0.1, threads=1)
        for number in range(25):
            held = held + through(coder, np.float32(length) * clients.mean_update(held), 77 + number)
        ends[length] = float(np.linalg.norm(held - clients.target) / np.linalg.norm(clients.target))
    assert ends[1.0] > 4 > 2 * ends[step_length([0.1] * 3, 0.1)], ends


@pytest.mark.parametrize(("rate", "expected"), [(0.1, step_length([0.1] * 2, 0.1)), (1.0, 1.0)])
def test_the_local_engine_takes_steps_of_that_length(rate, expected):
    config = config_of("trellis", rounds=3, downlink="coded", rate=rate, down_rate=rate, clients=2)
    federation = federation_of(config)
    name, shares = str(federation.method.vector_name), []
    for result in trained(config, federation):
        opened = Downlink(federation.method, config).open(result.state)
        before = result.state.held.state[name]
        wanted = result.state.vector(name) - before
        step = opened.state.vector(name) - before
        shares.append(float(wanted @ step / (wanted @ wanted)))
    assert shares
    assert np.mean(shares) == pytest.approx(expected, rel=0.2)
