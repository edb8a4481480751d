"""The downlink: what the server sends at the start of a round, and how a client reads it.

Both engines go through these two functions, so a scheme that compresses the downlink belongs here. If it loses
anything, the server must decode with the state as clients read it: `theta` and block maps are part of `p`.
"""

from klms.methods.state import State


def write_broadcast(state: State) -> bytes:
    """Return what every client of the next round receives: the shared part of the state."""
    return state.to_bytes(private=False)


def read_broadcast(data: bytes) -> State:
    """Return the state as a client holds it; raise `CorruptMessage` if the bytes are not a broadcast."""
    return State.from_bytes(data)
