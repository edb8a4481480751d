"""Undoing rounds: if the loss on the test data explodes, the server returns to the last model whose loss was sound.

With a coded downlink, the next coded step leads clients to that model; otherwise they get a snapshot, since no relayed
messages lead there.
"""

import math
from dataclasses import replace

import numpy as np

from klms.exchange.broadcast import Trail
from klms.methods.state import Sound, State

_LEAST = 1.0  # a loss below this has not exploded, whatever it was before


def has_exploded(sound: Sound, loss: float, factor: float) -> bool:
    """Return whether the loss is more than `factor` times that of the last sound model; never if `factor` is 0."""
    return factor > 0 and not loss <= factor * max(_LEAST, sound.loss)  # true for NaN


def marked_sound(state: State, loss: float) -> State:
    """Return the state; if the loss is finite, the state's own arrays are marked as the last sound ones."""
    return replace(state, sound=Sound(loss, state.shared, state.private)) if math.isfinite(loss) else state


def returned(state: State, sound: Sound) -> State:
    """Return `state` with the arrays of the last sound model. It keeps its own number, so that no key is used twice.

    Clients keep their states. Relayed steps are dropped, since they lead to the state that is given up. Coded steps are
    kept, since they lead only to the state before the one that is given up.
    """
    held = state.held
    if held.number >= state.round:
        held = replace(held, trail=Trail(state.round))
    unknown = np.zeros(0, dtype=np.float32)
    return replace(state, shared=sound.shared, private=sound.private, held=held, last_step=unknown)
