"""Steps of a model whose error comes back in one way or another: the error must not grow."""

import numpy as np
import pytest

from klms import SharedKey
from klms.compressors.layout import Layout
from klms.compressors.trellis import Trellis
from klms.exchange.echo import LAGS, SIZE, Echo, sketch

D = 1 << 13
LAYOUT = Layout(("a",), ((D,),))


def normal(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(D, dtype=np.float32)


class Server:
    """Leads clients from `held` to what a strategy wants, at a low rate, and notes the echo of every step."""

    def __init__(self, rate: float) -> None:
        self.rate, self.held, self.echo, self.echoes = rate, np.zeros(D, dtype=np.float32), Echo(), []

    def lead(self, wanted: np.ndarray) -> None:
        difference = (wanted - self.held).astype(np.float32)
        self.echoes.append(self.echo.share_in(difference))
        coder = Trellis(LAYOUT, self.rate, echo=self.echoes[-1], threads=1)
        key, rng = SharedKey(1, len(self.echoes), 0), np.random.default_rng(len(self.echoes))
        step = coder.decode(coder.encode(difference, {}, key=key, rng=rng), {}, key=key).vector
        self.echo = self.echo.then(difference, step)
        self.held = self.held + step


def end(server: Server, rounds: int, wanted, target: np.ndarray) -> float:
    """Return how far clients are from the target after so many rounds, relative to the start."""
    for _ in range(rounds):
        server.lead(wanted(server.held))
    return float(np.linalg.norm(server.held - target) / np.linalg.norm(target))


@pytest.mark.parametrize(
    ("share", "rate", "bound"), [(0.02, 0.1, 0.6), (0.2, 0.1, 0.3), (0.5, 0.1, 0.5), (0.5, 1, 0.01)]
)
def test_clients_that_undo_a_share_of_an_error_come_closer_to_their_target(share, rate, bound):
    target, server = normal(1), Server(rate)
    assert end(server, 50, lambda held: held + np.float32(share) * (target - held), target) < bound
    assert np.median(server.echoes[5:30]) > 0.7 * share  # it may be taken for more, which is safe


@pytest.mark.parametrize("rate", [0.1, 0.3, 1])
def test_a_model_that_is_kept_whatever_clients_hold_is_reached(rate):
    target, server = normal(1), Server(rate)
    assert end(server, 50, lambda held: target, target) < {0.1: 0.6, 0.3: 0.01, 1: 1e-6}[rate]
    assert min(server.echoes[1:20]) > 0.9


@pytest.mark.parametrize("rate", [0.1, 0.3, 1])
def test_momentum_on_a_model_of_its_own_does_not_run_away(rate):
    """FedAvgM of Flower: it subtracts momentum of `own - average` from its own model, whatever it is given."""
    target, server = normal(1), Server(rate)
    own, momentum = np.zeros(D, dtype=np.float32), np.zeros(D, dtype=np.float32)

    def wanted(held):
        nonlocal own, momentum
        momentum = 0.9 * momentum + (own - (held + 0.2 * (target - held)))
        own = own - momentum
        return own

    distances = [end(server, 10, wanted, target) for _ in range(6)]
    assert max(distances) < 2
    assert distances[-1] < 0.7


def test_noise_that_nobody_answers_is_no_echo():
    server = Server(0.1)
    moves = iter(range(100, 200))
    end(server, 20, lambda held: held + normal(next(moves)), normal(1))
    assert max(server.echoes) < 0.05


def test_sketches_are_few_and_small_and_keep_inner_products():
    echo = Echo()
    for seed in range(2 * LAGS):
        echo = echo.then(normal(seed), np.zeros(D, dtype=np.float32))
    assert echo.sketches.shape == (LAGS, SIZE)
    assert not echo.sketches.any()  # nothing of these errors is orthogonal to their steps
    a, b = normal(1), normal(1) + normal(2)
    assert sketch(a) @ sketch(b) == pytest.approx(float(a @ b), rel=0.2)
    assert Echo().share_in(a) == 0.0
    assert Echo().then(a, b).share_in(np.zeros(D, dtype=np.float32)) == 0.0
