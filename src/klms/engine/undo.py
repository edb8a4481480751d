"""Undoing rounds: if the loss on the test data explodes, the server returns to the last model whose loss was sound.

The clients learn of it by a snapshot, since no message led there, or by the next coded step.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from klms.engine.downlink_state import DownlinkState
from klms.methods.state import Arrays, State

_LOSS = "loss"
_LEAST = 1.0  # whatever it was before, a lower loss than this has not exploded


def loss_of(metrics: Mapping[str, float]) -> float | None:
    """Return the loss among the metrics of an evaluation; None if there is none."""
    return metrics.get("nll", metrics.get("loss"))


def has_exploded(state: State, loss: float, factor: float) -> bool:
    """Return whether the loss is more than `factor` times that of the last sound model; never if `factor` is 0."""
    if not factor or _LOSS not in state.sound:
        return False
    return not loss <= factor * max(_LEAST, float(state.sound[_LOSS]))  # true for NaN


def marked_sound(state: State, loss: float) -> State:
    """Return the state with its own arrays as those to return to."""
    if not math.isfinite(loss):
        return state
    kept = {f"shared.{name}": array for name, array in state.shared.items()}
    kept |= {f"private.{name}": array for name, array in state.private.items()}
    return replace(state, sound={**kept, _LOSS: np.array(loss)})


def returned(state: State) -> State:
    """Return the state with the arrays of the last sound one. Its number stays, since keys are never used again."""
    sound = replace(state, shared=_group(state.sound, "shared."), private=_group(state.sound, "private."))
    return DownlinkState.read(state.downlink).without(state.round).in_state(sound)


def _group(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
