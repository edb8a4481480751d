"""The bytes of a state, which a checkpoint holds and a client keeps."""

import io

import numpy as np
import pytest

from klms.errors import CorruptMessage
from klms.methods.state import State


def archive(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("number", [np.array(-1), np.array(1.5), np.array([1, 2])])
def test_the_round_of_a_state_is_a_whole_number(number):
    with pytest.raises(CorruptMessage, match="not a state"):
        State.from_bytes(archive(round=number, **{"shared.theta": np.zeros(2)}))


@pytest.mark.parametrize("name", ["elsewhere.x", "memories.one"])
def test_a_state_has_known_parts(name):
    with pytest.raises(CorruptMessage, match="not a state"):
        State.from_bytes(archive(**{"round": np.array(1), name: np.zeros(2)}))


def test_a_state_is_never_larger_than_its_bytes():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, round=np.array(1), **{"shared.theta": np.zeros(1 << 20)})
    with pytest.raises(CorruptMessage, match="unpacks to more"):
        State.from_bytes(buffer.getvalue())
