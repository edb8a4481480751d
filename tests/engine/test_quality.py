"""Runs that hold a quality: the rates of every round are chosen, and everybody comes to the same ones."""

from dataclasses import replace

import numpy as np
import pytest

from klms.engine import local, rate_choice
from klms.engine.downlink import Downlink
from klms.engine.steps import CodedSteps, RelayedSteps
from klms.errors import CorruptMessage
from klms.exchange.quality import FIRST_ROUND, LEAST, TARGET
from klms.methods.state import State
from tests.support.downlink_runs import arrays, config_of, federation_of, figures, run_of, trained

pytest.importorskip("torch")
HELD = {"quality": 1.0, "optimizer": "sgd", "lr": 0.05, "batch": 100}
EVERYBODY = {"per_round": 0, "clients": 6}
DOWNLINKS = ["auto", "coded", "snapshot"]


@pytest.mark.parametrize("downlink", DOWNLINKS)
def test_the_harm_of_noise_is_held(downlink):
    config = config_of("trellis", **HELD, **EVERYBODY, downlink=downlink, rounds=14)
    records = [result.record for result in trained(config, federation_of(config, hidden=1000, count=400))]
    for record in records[4:]:
        assert TARGET / 2 < record.harm < 2 * TARGET
    assert records[0].bits_up == pytest.approx(FIRST_ROUND, abs=0.05)
    assert len({record.bits_up for record in records}) > 5
    coded = [record.bits_down for record in records]
    assert coded[0] == 0
    assert all(bits >= LEAST for bits in coded[1:]) if downlink == "coded" else not any(coded)


def test_a_higher_quality_has_less_harm_and_more_bytes():
    def run(quality):
        given = {**HELD, **EVERYBODY, "downlink": "coded", "rounds": 10, "quality": quality}
        config = config_of("trellis", **given)
        records = [result.record for result in trained(config, federation_of(config, hidden=1000, count=400))][4:]
        sent = sum(record.uplink_bytes + record.downlink_bytes for record in records)
        return float(np.median([record.harm for record in records])), sent

    (harm, sent), (finer_harm, finer_sent) = run(1.0), run(4.0)
    assert harm / 8 < finer_harm < harm / 2
    assert finer_sent > 1.5 * sent


@pytest.mark.parametrize("downlink", DOWNLINKS)
def test_the_rates_are_the_same_with_workers_and_after_a_stop(downlink, workers):
    config, federation, whole = run_of("trellis", **HELD, downlink=downlink)
    assert figures(trained(config, federation, workers=workers)) == figures(whole)
    for done in (1, 4):
        stored = State.from_bytes(whole[done - 1].state.to_bytes())
        assert stored.learned == whole[done - 1].state.learned
        resumed = trained(config, federation, stored)
        assert figures(resumed) == figures(whole[done:])
        assert arrays(resumed[-1].state) == arrays(whole[-1].state)


@pytest.mark.parametrize("downlink", DOWNLINKS)
def test_every_client_is_told_the_rate_and_nothing_else_of_it(downlink):
    config, federation, results = run_of("trellis", **HELD, downlink=downlink)
    method = federation.method
    told = Downlink(method, config)
    held = None
    for before in [method.init(), *(result.state for result in results[:-1])]:
        broadcasts = told.open(before)
        held = told.follow(broadcasts.sender.message(0 if held is None else held.round), held)
        assert held.rate == before.rate
        assert method.compressor_after(held).rate == pytest.approx(before.rate)


def test_noise_is_what_the_messages_differ_from_their_updates():
    config = config_of("trellis", **HELD, **EVERYBODY)
    federation = federation_of(config)
    method, state = federation.method, federation.method.init()
    received = method.receive(state)
    exact, errors = [], []
    for client in range(config.clients):
        upload = local.update(federation, state, client)
        rng = federation.private_rng(1, client)
        update, _ = method.train(state, client, federation.examples(client), rng)
        decoded = method.decode(state, client, upload.message)
        received.add(decoded, len(upload.message))
        exact.append(update)
        errors.append(decoded.vector - update)
    expected = np.square(np.stack(errors)).sum() / config.clients**2
    assert received.energies.noise == pytest.approx(expected, rel=0.1)


def test_a_round_that_came_to_nothing_keeps_the_rates():
    config, federation, results = run_of("trellis", **HELD, downlink="coded")
    state = results[2].state
    broadcasts = Downlink(federation.method, config).open(state)
    model = broadcasts.model
    undone = replace(results[3].state, shared=model.shared, learned=model.learned)
    outcome = rate_choice.Outcome(undone, {}, undone=True)
    received = federation.method.receive(state)
    assert rate_choice.after_round(federation.method, config, broadcasts.held, outcome, received) is outcome


@pytest.mark.parametrize("kind", [RelayedSteps, CodedSteps])
@pytest.mark.parametrize("head", [b"", b"\0\0", np.float32(np.nan).tobytes(), np.float32(9).tobytes(), bytes(4)])
def test_a_step_with_an_impossible_rate_is_refused(kind, head):
    config, federation, _ = run_of("trellis", **HELD)
    with pytest.raises(CorruptMessage, match=r"cut off|cannot have"):
        kind(federation.method, config).take(federation.method.init(), 1, head)


def test_a_given_rate_is_fixed_and_its_messages_say_nothing_of_norms():
    config, federation, results = run_of("trellis")
    assert config.quality == 0
    assert results[-1].state.learned is None
    assert "rate" not in results[-1].state.shared
    assert results[-1].record.harm is None
    fixed = federation.method.compressor_after(federation.method.init())
    assert fixed is federation.method.compressor
