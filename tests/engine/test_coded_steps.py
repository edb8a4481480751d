"""Coded differences: clients follow the server on few bits, by steps from what they hold or by a jump."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from klms.engine import undo
from klms.engine.downlink import Downlink, Relay
from klms.engine.rounds import one_round
from klms.errors import InvalidArgument
from klms.exchange import held as held_module
from klms.exchange.broadcast import ANCHOR, Broadcast, Trail
from klms.frame import OVERHEAD
from klms.methods.base import Outcome
from klms.methods.state import State
from tests.support.downlink_runs import config_of, federation_of, figures, run_of, states_before, trained


@pytest.mark.parametrize("run", ["trellis", "qsgd-klms", "fedpm-klms", "sgld-klms"])
def test_a_coded_run_learns_on_few_bits_and_is_evaluated_at_the_server_s_own_weights(run):
    config, federation, coded = run_of(run, rounds=13, downlink="coded")
    name = federation.method.vector_name
    downlink = Downlink(federation.method, config)
    state = coded[-1].state
    seen = downlink.open(state).state.vector(name)
    own = state.vector(name)
    if name == "theta":
        margin = np.float32(config.margin)
        for broadcast in map(downlink.open, states_before(run, rounds=13, downlink="coded")):
            theta = broadcast.state.vector("theta")
            assert margin <= theta.min() <= theta.max() <= np.float32(1 - config.margin)
    assert np.isfinite(own).all()
    assert 0 < np.linalg.norm(seen - own) < 0.5 * np.linalg.norm(own)
    if run == "trellis":  # at one bit for each parameter, beside heads
        plain = run_of(run, rounds=13)[2]
        assert coded[-1].record.accuracy > plain[-1].record.accuracy - 0.15
        _, _, everybody = run_of(run, rounds=13, per_round=0, downlink="coded")
        for held, number in [(11, 1), (9, 3)]:
            size = downlink.open(everybody[11].state).sender.trail.size_since(held)
            assert size <= number * (federation.method.layout.d / 8 + 60)


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_with_a_target_that_stays_clients_come_to_hold_it(rate):
    config = config_of("trellis", downlink="coded", down_rate=rate)
    federation = federation_of(config)
    downlink = Downlink(federation.method, config)
    first = federation.method.init()
    rng = np.random.default_rng(0)
    target = first.vector("weights") + rng.standard_normal(first.vector("weights").size).astype(np.float32)
    state, held, errors = first, None, []
    for _ in range(40):
        opened = downlink.open(state)
        held = downlink.follow(opened.message(0), held)
        assert np.array_equal(held.vector("weights"), opened.state.vector("weights"))
        errors.append(float(np.linalg.norm(target - held.vector("weights"))))
        after = opened.state.after(opened.state.shared)
        reached = dict.fromkeys(range(config.clients), opened.held.number)
        closed = downlink.close(state, opened, Outcome(after, {}), reached, Relay(state))
        if state.round:  # nobody answered: the server keeps its own weights, not what it could send of them
            assert np.array_equal(closed.vector("weights"), state.vector("weights"))
        state = replace(closed, shared={**closed.shared, "weights": target})
    # The first step is unbiased; from then on all of its error is still there, and steps have the least error.
    assert errors[10] < 0.4 * errors[1]
    assert errors[-1] < 0.05 * errors[1] if rate == 1.0 else errors[-1] < 0.2 * errors[1]


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_after_a_return_to_the_last_sound_model_errors_do_not_grow(rate):
    config = config_of("trellis", downlink="coded", down_rate=rate)
    federation = federation_of(config)
    downlink, state, rng = Downlink(federation.method, config), federation.method.init(), np.random.default_rng(0)

    def after_round(state: State, size: float) -> State:
        """A round whose updates come to a normal vector of this standard deviation."""
        opened, relay = downlink.open(state), Relay(state)
        relay.add(0, b"message")
        held = opened.state.vector("weights")
        update = (size * rng.standard_normal(held.size)).astype(np.float32)
        after = opened.state.after({**opened.state.shared, "weights": held + update})
        reached = dict.fromkeys(range(config.clients), opened.held.number)
        return downlink.close(state, opened, Outcome(after, {}), reached, relay)

    for _ in range(4):
        state = undo.marked_sound(after_round(state, 0.01), 1.0)
    sound, offs = state.vector("weights"), []
    state = after_round(state, 0.3)  # after which the loss explodes
    for _ in range(16):
        offs.append(float(np.linalg.norm(state.vector("weights") - sound) / np.linalg.norm(sound)))
        state = after_round(undo.returned(state, state.sound) if offs[-1] > 0.5 else state, 0.01)
    assert max(offs[2:]) < offs[0]
    assert offs[-1] < 0.7 * offs[0]


@pytest.mark.parametrize("mode", ["coded", "auto"])
def test_after_a_return_clients_are_led_on_from_what_they_hold(mode):
    config, federation, results = run_of("trellis", rounds=13, downlink=mode)
    downlink = Downlink(federation.method, config)
    sound = undo.marked_sound(results[0].state, 1.0).sound
    jumps = 0
    for before, after in pairwise(result.state for result in results):
        opened = downlink.open(before)
        jumps += opened.sender.trail.anchored
        following = downlink.open(undo.returned(after, sound))
        for held in (opened.state, None):  # a client of the round that was undone, and one that never came
            message = following.sender.message(held.round if held else 0)
            assert downlink.follow(message, held).round == after.round
            assert (Broadcast.from_bytes(message).snapshot is None) == (mode == "coded")
    assert jumps > 3 if mode == "coded" else jumps == 0


def test_a_coded_round_without_answers_keeps_the_server_s_theta():
    config, federation, results = run_of("fedpm-klms", rounds=13, downlink="coded")

    class Nobody:
        def run(self, broadcasts, wanted):
            return iter(())

        def enough(self, count):
            return False

        def report(self):
            return {}

    state = results[5].state
    passed = one_round(federation, config, state, Nobody()).state
    assert passed.round == state.round + 1
    assert np.array_equal(passed.vector("theta"), state.vector("theta"))
    assert not np.array_equal(
        Downlink(federation.method, config).open(state).state.vector("theta"), state.vector("theta")
    )


def test_marina_has_no_coded_downlink():
    config = config_of("marina", downlink="coded")
    federation = federation_of(config)
    with pytest.raises(InvalidArgument, match="marina has no coded downlink"):
        trained(config, federation)


# Jumps: differences to the anchor, for those who come rarely

SPARSE = {"clients": 30, "per_round": 2, "rounds": 16, "downlink": "coded"}


def jumps_of(run, **given):
    config, federation, results = run_of(run, **SPARSE, **given)
    downlink = Downlink(federation.method, config)
    return downlink, [downlink.open(state) for state in [federation.method.init(), *(r.state for r in results)]]


def test_where_clients_come_rarely_jumps_take_fewer_bytes_and_clients_stay_close(monkeypatch):
    config, federation, results = run_of("trellis", **SPARSE)
    _, opened = jumps_of("trellis")
    assert sum(broadcast.sender.trail.anchored for broadcast in opened) > 3

    def distance(results):
        """Mean distance of what clients held from what the server had, from round 4 on."""
        pairs = pairwise(results[2:])
        return np.mean([np.linalg.norm(a.state.vector("weights") - b.state.held.state["weights"]) for a, b in pairs])

    monkeypatch.setattr(held_module, "_mean_bytes", lambda *_: 0.0)
    stepping = trained(config, federation)
    sent, without = (sum(r.record.downlink_bytes for r in runs) for runs in (results, stepping))
    assert sent < 0.75 * without
    assert distance(results) < 1.5 * distance(stepping)


def test_whatever_a_client_holds_a_jump_leads_it_to_the_state_of_the_server():
    downlink, opened = jumps_of("trellis")
    last = opened[-1]
    assert last.sender.trail.anchored
    for held in [None, *(broadcast.state for broadcast in opened)]:
        message = last.sender.message(0 if held is None else held.round)
        reached = downlink.follow(message, held)
        assert downlink.digest(reached) == last.sender.digest
        read = Broadcast.from_bytes(message)
        assert read.jumps == (held is None or held.round <= last.sender.trail.start)
        # The server may not know how far a client is.
        assert downlink.digest(downlink.follow(last.sender.message(0), held)) == last.sender.digest


def test_a_jump_mends_what_a_client_held():
    downlink, opened = jumps_of("trellis")
    last = opened[-1]
    old = opened[2].state
    damaged = replace(old, shared={"weights": old.vector("weights") * np.nan})
    assert downlink.digest(downlink.follow(last.sender.message(2), damaged)) == last.sender.digest


def test_a_late_joiner_gets_a_jump_instead_of_every_step():
    downlink, opened = jumps_of("trellis")
    message = opened[-1].sender.message(0)
    assert Broadcast.from_bytes(message).jumps
    assert 8 * len(message) / downlink.method.layout.d < 12  # after 16 steps of one bit


def test_clients_that_all_come_in_every_round_are_never_sent_a_jump():
    config, federation, results = run_of("trellis", rounds=13, per_round=0, downlink="coded")
    downlink = Downlink(federation.method, config)
    assert not any(downlink.open(result.state).sender.trail.anchored for result in results)


def test_a_run_with_jumps_that_was_stopped_anywhere_goes_on_as_if_it_was_not():
    config, federation, whole = run_of("trellis", **SPARSE)
    for stop in (5, 15):
        stored = State.from_bytes(whole[stop - 1].state.to_bytes())
        rest = trained(config, federation, stored)
        assert figures(rest) == figures(whole[stop:])
        assert rest[-1].state.to_bytes() == whole[-1].state.to_bytes()


def test_after_a_jump_the_steps_before_it_are_not_kept():
    history = Trail(3, (b"2", b"3")).jump(b"jump").then(b"5", 100)
    assert (history.number, history.start) == (5, 3)
    for held in (0, 2, 3):
        assert history.since(held) == (b"jump", b"5")
        assert history.base(held) == ANCHOR
    assert (history.since(4), history.base(4)) == ((b"5",), 4)
    assert history.since(5) == ()
    assert history.since(6) is None
    trimmed = history.then(b"6", 10)  # no room for the jump
    assert not trimmed.anchored
    assert trimmed.since(3) is None
    assert trimmed.since(4) == (b"5", b"6")


def test_the_bytes_of_a_broadcast_with_a_jump_are_those_of_the_format():
    broadcast = Broadcast(5, bytes(range(8)), ANCHOR, (b"jump", b"5"))
    assert broadcast.jumps
    golden = "4b5801060000000005000000000102030405060704000000" + b"jump".hex() + "01000000" + b"5".hex()
    assert broadcast.to_bytes().hex()[:-8] == golden
    assert Broadcast.from_bytes(broadcast.to_bytes()) == broadcast
    assert len(broadcast.to_bytes()) == OVERHEAD + 13
