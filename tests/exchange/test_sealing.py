"""What is sealed for a server, only that server reads."""

import pytest

pytest.importorskip("cryptography")

from klms.errors import CorruptMessage, InvalidArgument
from klms.exchange.sealing import OVERHEAD, ServerKey, seal

PAYLOAD = bytes(range(200))


def test_what_is_sealed_opens_and_nothing_else_does():
    server, other = ServerKey(), ServerKey()
    sealed = seal(PAYLOAD, server.public)
    assert server.open(sealed) == PAYLOAD
    assert len(sealed) == len(PAYLOAD) + OVERHEAD
    assert sealed != seal(PAYLOAD, server.public)  # a key for every payload
    with pytest.raises(CorruptMessage, match="not sealed for this server"):
        other.open(sealed)
    for place in (0, 31, 32, 100, len(sealed) - 1):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(CorruptMessage):
            server.open(bytes(changed))
    for cut in (sealed[:-1], sealed[:OVERHEAD], sealed[:10], b"", bytes(100)):
        with pytest.raises(CorruptMessage):
            server.open(cut)


@pytest.mark.parametrize("public", [bytes(32), b"short", bytes(33)])
def test_a_public_key_that_is_none_is_refused(public):
    with pytest.raises(InvalidArgument, match="public key"):
        seal(PAYLOAD, public)
