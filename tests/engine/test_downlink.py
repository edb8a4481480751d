"""How clients come to hold the server's state: any path leads to the same one, and no bytes lead to another."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from klms.engine.downlink import Downlink, Relay
from klms.errors import OutOfSync
from klms.exchange.broadcast import Broadcast, Trail
from klms.frame import OVERHEAD
from klms.methods.state import State
from tests.support.downlink_runs import RUNS, arrays, config_of, federation_of, figures, run_of, states_before, trained


@pytest.mark.parametrize("run", RUNS)
def test_relayed_messages_and_snapshots_lead_to_the_same_run(run):
    _, _, relayed = run_of(run)
    _, _, whole = run_of(run, downlink="snapshot")
    assert figures(relayed, "downlink_bytes") == figures(whole, "downlink_bytes")
    assert arrays(relayed[-1].state) == arrays(whole[-1].state)
    sent, all_of_it = (sum(result.record.downlink_bytes for result in results) for results in (relayed, whole))
    if run == "sgld-klms":  # two of its messages are larger than the state
        assert sent <= all_of_it
    else:
        assert sent < all_of_it
    assert relayed[0].record.downlink_bytes == 2 * OVERHEAD  # the first state follows from the seed


@pytest.mark.parametrize("mode", ["auto", "coded"])
@pytest.mark.parametrize("run", ["fedpm-klms", "fedpm-klms reset", "qsgd-klms", "trellis"])
def test_a_client_that_comes_every_few_rounds_or_late_reaches_the_state_of_the_server(run, mode):
    config, federation, _ = run_of(run, rounds=13, downlink=mode)
    downlink = Downlink(federation.method, config)
    opened = [downlink.open(state) for state in states_before(run, rounds=13, downlink=mode)]
    kinds = set()
    for gap in range(1, 7):
        held = None
        for broadcast in opened[gap - 1 :: gap]:
            known = 0 if held is None else held.round
            message = broadcast.sender.message(known)
            held = downlink.follow(message, held)
            assert {n: a.tobytes() for n, a in held.shared.items()} == {
                n: a.tobytes() for n, a in broadcast.state.shared.items()
            }
            assert held.round == broadcast.state.round
            steps, snapshot = broadcast.sender.trail.size_since(known), len(broadcast.snapshot())
            kinds.add(Broadcast.from_bytes(message).snapshot is None)
            if steps is None:
                assert len(message) == snapshot
            elif steps > broadcast.sender.size // 64:
                assert len(message) == min(steps + OVERHEAD, snapshot)
            else:
                assert len(message) == steps + OVERHEAD
            assert len(message) <= snapshot
    assert True in kinds
    late = opened[10]
    assert downlink.digest(downlink.follow(late.sender.message(0), None)) == late.sender.digest
    assert downlink.digest(downlink.follow(late.snapshot(), None)) == late.sender.digest
    # One that is further than the server thinks takes only the steps that it lacks.
    ahead = downlink.follow(opened[9].snapshot(), None)
    assert downlink.digest(downlink.follow(late.sender.message(8), ahead)) == late.sender.digest


def test_a_client_that_holds_another_state_is_told_so():
    config, federation, _ = run_of("fedpm-klms")
    downlink = Downlink(federation.method, config)
    states = states_before("fedpm-klms")
    held = downlink.follow(downlink.open(states[4]).snapshot(), None)
    message = downlink.open(states[6]).sender.message(4)
    theta = held.vector("theta").copy()
    theta[7] = 0.25
    wrong = [
        None,
        replace(held, round=3),
        replace(held, round=7),
        replace(held, shared={**held.shared, "theta": theta}),
        replace(held, shared={**held.shared, "theta": theta * np.nan}),
        replace(held, shared={**held.shared, "theta": theta[:-1]}),
        replace(held, shared={"theta": held.shared["theta"]}),
        replace(held, shared={}),
    ]
    for state in wrong:
        with pytest.raises(OutOfSync):
            downlink.follow(message, state)
    same = downlink.open(states[4]).sender.message(4)
    for state in wrong:
        with pytest.raises(OutOfSync):
            downlink.follow(same, state)
    assert downlink.follow(message, held).round == 6


def test_what_the_server_keeps_for_those_who_were_away_is_never_larger_than_the_state():
    for run, mode in [("fedpm-klms", "auto"), ("trellis", "auto"), ("trellis", "coded"), ("sgld-klms", "auto")]:
        for state in states_before(run, **({"rounds": 13, "downlink": mode} if mode == "coded" else {})):
            kept = sum(map(len, state.held.trail.steps))
            assert kept <= sum(array.nbytes for array in state.shared.values())
    config = config_of("fedavg", rounds=30)  # a tiny model, whose float32 messages are larger than itself
    for result in trained(config, federation_of(config, hidden=1)):
        assert result.state.held.trail.steps == ()
    history = Trail(0)
    for number in range(5000):
        history = history.then(b"" if number % 3 else bytes(number % 50), 400)  # rounds without a message are free
        assert sum(map(len, history.steps)) + 4 * len(history.steps) <= 400
    assert history.number == 5000
    assert len(history.steps) > 10


def test_a_round_s_messages_are_dropped_once_a_snapshot_is_smaller():
    state = State(0, {"weights": np.zeros(100_000, dtype=np.float32)})
    relay = Relay(state)
    tracemalloc.start()
    for client in range(200):
        relay.add(client, np.full(100_000, client, dtype=np.float32).tobytes())  # 400 kB each, 80 MB in all
    assert tracemalloc.get_traced_memory()[1] < 4e6
    tracemalloc.stop()
    assert relay.parts == []
    relay.add(200, b"small")  # not relayed either: a step without the others would be another step
    assert relay.parts == []


@pytest.mark.parametrize("mode", ["auto", "snapshot", "coded"])
@pytest.mark.parametrize("run", ["fedpm-klms reset", "qsgd-klms", "sgld-klms", "topk"])
def test_a_run_that_was_stopped_anywhere_goes_on_as_if_it_was_not(run, mode):
    config, federation, whole = run_of(run, downlink=mode)
    for stop in (1, 4, 6):
        stored = State.from_bytes(whole[stop - 1].state.to_bytes())
        rest = trained(config, federation, stored)
        assert figures(rest) == figures(whole[stop:])
        assert rest[-1].state.to_bytes() == whole[-1].state.to_bytes()


def test_two_workers_go_on_with_a_coded_run_as_one_does(workers):
    config, federation, whole = run_of("trellis", rounds=13, downlink="coded")
    stored = State.from_bytes(whole[10].state.to_bytes())
    rest = trained(config, federation, stored, workers=workers)
    assert figures(rest) == figures(whole[11:])
    assert rest[-1].state.to_bytes() == whole[-1].state.to_bytes()


@pytest.mark.parametrize("mode", ["snapshot", "coded"])
def test_clients_that_take_no_step_of_the_server_s_do_not_get_what_it_keeps(mode):
    config, federation, results = run_of("fedpm-klms reset", downlink=mode)
    state = results[0].state
    assert state.private
    opened = Downlink(federation.method, config).open(state)
    assert not Downlink(federation.method, config).follow(opened.snapshot(), None).private
