"""Rates that a schedule or a budget sets for every round: what is counted is what they say, in both engines' rounds."""

import pytest

from klms.errors import InvalidArgument
from klms.methods.rate_schedule import RateSchedule
from klms.methods.state import State
from klms.runs.settings import resolve
from tests.support.downlink_runs import config_of, federation_of, figures, run_of, trained

pytest.importorskip("torch")
EVERYBODY = {"per_round": 0, "clients": 4}


def rates_up(run, **given):
    return [result.record.bits_per_parameter for result in run_of(run, **given)[2]]


@pytest.mark.parametrize("method", ["trellis", "eden"])
def test_the_rate_of_a_round_is_the_one_in_the_schedule(method):
    found = rates_up(method, rate_schedule="2:2,1:3,0.5")
    heads = 0.35  # a small model, whose heads count
    assert found == pytest.approx([2, 2, 1, 1, 1, 0.5, 0.5, 0.5], abs=heads)


def test_a_schedule_of_one_rate_is_that_rate():
    assert figures(run_of("trellis", rate_schedule="1")[2]) == figures(run_of("trellis")[2])


def test_the_downlink_has_a_schedule_of_its_own():
    given = {**EVERYBODY, "downlink": "coded"}
    config, federation, results = run_of("trellis", **given, down_rate_schedule="1:1,2:3,1")
    d = federation.method.layout.d
    bits = [8 * result.record.downlink_bytes / d / config.clients for result in results]
    assert bits[0] < 0.1  # the first state follows from the seed
    assert bits[1:] == pytest.approx([2, 2, 2, 1, 1, 1, 1], abs=0.35)


@pytest.mark.parametrize("given", [{}, {"downlink": "coded", "down_rate_schedule": "2:3,1"}])
def test_a_scheduled_run_that_was_stopped_goes_on_as_if_it_was_not(given):
    config, federation, whole = run_of("trellis", rate_schedule="2:3,1", **given)
    stored = State.from_bytes(whole[1].state.to_bytes())
    assert figures(trained(config, federation, stored)) == figures(whole[2:])


@pytest.mark.parametrize("downlink", ["auto", "coded"])
@pytest.mark.parametrize("budget", [12_000, 60_000])
def test_rounds_keep_to_their_budget_and_use_it(downlink, budget):
    config = config_of("trellis", **EVERYBODY, downlink=downlink, round_budget=budget, rounds=4)
    for result in trained(config, federation_of(config, hidden=1000))[1:]:
        sent = result.record.uplink_bytes + result.record.downlink_bytes
        assert 0.8 * budget < sent < 1.06 * budget  # a message of 600 bytes misses its rate by up to 4 %


def test_a_budget_that_no_rate_keeps_to_is_refused_before_training():
    config = config_of("trellis", **EVERYBODY, round_budget=1)
    method = federation_of(config).method
    with pytest.raises(InvalidArgument, match=r"budget of 1 bytes leaves .* at least 0\.0001"):
        method.compressor_after(method.init())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        ("1:5", "write 1, not 1:5"),
        ("1:5,", "'' is not a number"),
        ("1,0.1", "'1' is not RATE:ROUNDS"),
        ("1:0,0.1", "'1:0' is not RATE:ROUNDS"),
        ("1:-2,0.1", "is not RATE:ROUNDS"),
        ("1:x,0.1", "is not RATE:ROUNDS"),
        ("nan", "from 0.0001 to 8"),
        ("inf:3,1", "from 0.0001 to 8"),
        ("9:3,1", "from 0.0001 to 8"),
        ("0", "from 0.0001 to 8"),
        ("fast", "'fast' is not a number"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused_with_its_reason(text, reason):
    for name, more in [("rate_schedule", {}), ("down_rate_schedule", {"downlink": "coded"})]:
        if reason:
            with pytest.raises(InvalidArgument, match=reason):
                resolve("trellis", given={name: text, **more})
        else:
            assert resolve("trellis", given={name: text, **more}).rate_schedule == ""
    if reason:
        with pytest.raises(ValueError, match=reason):
            RateSchedule.parse(text)


@pytest.mark.parametrize(
    ("method", "given", "reason"),
    [
        ("fedpm-klms", {"rate_schedule": "1"}, "fedpm-klms has no rate that rate_schedule could set"),
        ("qsgd", {"round_budget": 10_000}, "qsgd has no rate that round_budget could set"),
        ("trellis", {"down_rate_schedule": "1"}, "down_rate_schedule needs downlink coded, not auto"),
        ("trellis", {"round_budget": 9, "rate_schedule": "1"}, "omit one of them"),
        ("trellis", {"round_budget": 9, "downlink": "snapshot"}, "needs downlink coded or auto"),
    ],
)
def test_what_a_schedule_or_a_budget_cannot_set_is_refused(method, given, reason):
    with pytest.raises(InvalidArgument, match=reason):
        resolve(method, given=given)
