"""Rounds whose loss explodes are undone, exactly, and clients follow."""

import numpy as np
import pytest
from torch.nn.functional import mse_loss

from klms.engine import undo
from klms.engine.federation import Federation
from klms.engine.local import clients_in
from klms.engine.rounds import one_round
from klms.methods.state import State
from klms.runs.settings import resolve
from tests.support.models import Line, three_classes


def regression(**given: object):
    x, _ = three_classes(60)
    y = x.sum(axis=1)
    config = resolve("fedavg", given={"clients": 3, "rounds": 9, "epochs": 1, "lr": 0.01, "evaluate_every": 1, **given})
    federation = Federation.of(config, Line(), [(x[n::3], y[n::3]) for n in range(3)], (x, y), loss=mse_loss)
    return config, federation


@pytest.mark.parametrize("downlink", ["auto", "snapshot", "coded"])
def test_the_server_returns_to_the_last_sound_model(downlink):
    config, federation = regression(downlink=downlink)
    state = federation.method.init()
    with clients_in(federation, 1) as clients:
        for _ in range(2):
            state = one_round(federation, config, state, clients).state
        sound = state
        original = federation.method.evaluate
        object.__setattr__(federation.method, "evaluate", lambda s, data: ({"loss": float("inf")}, s))
        exploded = one_round(federation, config, state, clients)
        object.__setattr__(federation.method, "evaluate", original)
        assert exploded.record.undone == 1.0
        assert exploded.record.loss is None
        assert exploded.state.round == 3
        np.testing.assert_array_equal(exploded.state.shared["weights"], sound.shared["weights"])
        resumed = State.from_bytes(exploded.state.to_bytes())
        following = one_round(federation, config, resumed, clients)  # clients reach the same state, or this raises
        assert following.record.undone is None
        assert following.record.loss < sound.sound.loss


def test_a_loss_explodes_by_its_factor_only():
    sound = undo.marked_sound(State(1, {"weights": np.ones(3)}), 2.0).sound
    assert not undo.has_exploded(sound, 19.9, 10.0)
    assert undo.has_exploded(sound, 20.1, 10.0)
    assert undo.has_exploded(sound, float("nan"), 10.0)
    assert not undo.has_exploded(sound, float("nan"), 0.0)
    small = undo.marked_sound(State(1, {"weights": np.ones(3)}), 0.01).sound
    assert not undo.has_exploded(small, 9.0, 10.0)
