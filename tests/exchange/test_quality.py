"""Constant quality: the rates that hold a measured number at its target."""

import math

import numpy as np
import pytest

from klms.exchange import quality
from klms.exchange.quality import Gain, Knowledge, Measured
from klms.exchange.server_gain import gain_of

PARAMETERS = 20_000


class Simulation:
    """Rounds in which codes behave as theory says: `k / (4^r - 1)` times the energy of what is coded."""

    def __init__(
        self, *, clients: int = 5, repair: float = 0.05, weights: float = 100.0, gain: Gain | None = None
    ) -> None:
        self.clients = clients
        self.repair = repair
        self.weights = weights
        self.gain = gain or Gain()
        self.known = Knowledge()
        self.up = quality.FIRST_ROUND
        self.down = quality.FIRST_ROUND
        self.error = 0.03 * weights

    def round(self, update: float, target: float = quality.TARGET) -> float:
        """Run a round whose mean update has this energy; return the harm of its noise."""
        noise = 1.3 * update / self.clients / (4**self.up - 1)
        mean = update + noise
        step = self.gain.immediate * mean
        seen = Measured(
            PARAMETERS,
            self.up,
            mean,
            noise,
            self.weights,
            step,
            math.sqrt(self.gain.immediate) * mean,
            self.error,
            -self.repair * self.error,
            self.gain,
        )
        self.known = quality.learned(self.known, seen)
        rates = quality.chosen(self.known, seen, target)
        self.down = rates.down
        self.error = 1.2 * step / (4**self.down - 1)
        harm = quality.harm(self.known, noise, self.error)
        self.known = quality.stepped(self.known, step, self.error, self.down)
        self.up = rates.up
        return harm


@pytest.mark.parametrize("target", [0.05, 0.15, 0.5])
@pytest.mark.parametrize("repair", [0.001, 0.05, 0.4])
def test_the_target_is_held_within_a_factor_of_two_from_the_fifth_round_on(target: float, repair: float) -> None:
    simulation = Simulation(repair=repair)
    harms = [simulation.round(4.0 * 0.85**n, target) for n in range(25)]
    assert all(target / 2 < harm < 2 * target for harm in harms[4:])


def test_rates_settle_instead_of_oscillating() -> None:
    simulation = Simulation()
    rates = []
    for _ in range(30):
        simulation.round(1.0)
        rates.append((simulation.up, simulation.down))
    settled = np.log(np.array(rates[15:]))
    assert settled.std(axis=0).max() < 0.06


def test_better_quality_and_more_repair_take_more_bits() -> None:
    def bits(target: float, repair: float) -> float:
        simulation = Simulation(repair=repair)
        for _ in range(20):
            simulation.round(1.0, target)
        return simulation.up + simulation.down

    assert bits(0.05, 0.05) > bits(0.15, 0.05) > bits(0.5, 0.05)
    assert bits(0.15, 0.4) > bits(0.15, 0.05)


def test_clients_that_average_their_noise_send_fewer_bits_than_the_server() -> None:
    simulation = Simulation(clients=50)
    for _ in range(20):
        simulation.round(1.0)
    assert simulation.up < simulation.down


def test_an_optimizer_that_amplifies_noise_takes_more_bits_up() -> None:
    plain = Simulation()
    amplified = Simulation(gain=Gain(total=25.0, immediate=1.0))
    adaptive = Simulation(gain=Gain(adaptive=0.5))
    for one in (plain, amplified, adaptive):
        for _ in range(20):
            one.round(1.0)
    assert amplified.up > plain.up
    assert adaptive.up > plain.up


def test_the_pair_is_the_cheapest_that_keeps_to_the_target() -> None:
    simulation = Simulation()
    for _ in range(10):
        simulation.round(1.0)
    known = simulation.known
    seen = Measured(PARAMETERS, simulation.up, 1.0, 0.1, 100.0, 1.0, 1.0)
    rates = quality.chosen(known, seen)
    promised = quality.harm(known, *quality.noise(known, seen, rates))
    assert promised == pytest.approx(quality.TARGET, rel=0.1)
    few_up = quality.chosen(known, seen, messages=(10, 1))
    few_down = quality.chosen(known, seen, messages=(1, 10))
    assert few_up.up < rates.up < few_down.up
    assert few_up.down > rates.down


def test_what_clients_take_back_is_found_despite_noise() -> None:
    rng = np.random.default_rng(0)
    simulation = Simulation()
    for _ in range(20):
        simulation.repair = 0.05 + rng.normal(0, 0.01)
        simulation.round(1.0)
    assert 0.04 < simulation.known.repair < 0.07


def test_a_round_without_any_update_is_survived() -> None:
    seen = Measured(PARAMETERS, 1.0, 0.0, 0.0, 100.0, 0.0, 0.0)
    rates = quality.chosen(quality.learned(Knowledge(), seen), seen)
    assert quality.LEAST <= rates.down <= quality.MOST
    assert quality.LEAST <= rates.up <= quality.MOST


def test_the_gain_of_momentum_and_of_adam_is_seen_in_their_steps() -> None:
    rng = np.random.default_rng(1)
    sizes = np.exp(rng.standard_normal(4000))
    momentum = np.zeros(4000)
    steps = []
    for _ in range(3):
        update = sizes * rng.standard_normal(4000)
        momentum = 0.8 * momentum + update
        steps.append(momentum)
    gain = gain_of(update, steps[-1], steps[-2], [0, 1000, 4000])
    assert gain.total == pytest.approx(25, rel=1e-6)
    assert gain.immediate == pytest.approx(1, rel=1e-6)
    assert gain.adaptive == pytest.approx(0, abs=1e-6)
    normalised = gain_of(update, update / sizes, None, [0, 4000])
    assert normalised.adaptive > 0.2


def test_a_step_of_zeros_has_the_gain_of_plain_averaging() -> None:
    zeros = np.zeros(10)
    assert gain_of(zeros, zeros, None, [0, 10]) == Gain()
    assert gain_of(np.ones(10), zeros, zeros, [0, 10]) == Gain()
