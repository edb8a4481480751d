import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms.codec import CorruptMessage, KLMSError, SideInformationMismatch, UnsupportedMessage

pytest.importorskip("flwr")

from klms.flower.frame import ARRAYS, METHOD, OVERHEAD, Ticket, WrongRound, cause, fingerprint

TICKET = Ticket(ARRAYS, 3, 7, b"12345678")


def test_golden_bytes():
    assert Ticket(METHOD, 3, 7, b"12345678").frame(b"body").hex() == (
        "4b46010203000000070000003132333435363738626f647995e37d3d"
    )


@given(st.binary(max_size=100))
def test_what_was_framed_is_opened(body):
    payload = TICKET.frame(body)
    assert len(payload) == OVERHEAD + len(body)
    assert TICKET.open(payload) == body


@pytest.mark.parametrize(
    ("other", "error", "word"),
    [
        (Ticket(ARRAYS, 2, 7, b"12345678"), WrongRound, "stale"),
        (Ticket(ARRAYS, 3, 6, b"12345678"), SideInformationMismatch, "mismatch"),
        (Ticket(METHOD, 3, 7, b"12345678"), SideInformationMismatch, "mismatch"),
        (Ticket(ARRAYS, 3, 7, b"other..."), SideInformationMismatch, "mismatch"),
    ],
)
def test_what_is_meant_for_another_is_told_apart(other, error, word):
    with pytest.raises(error) as caught:
        TICKET.open(other.frame(b"body"))
    assert cause(caught.value) == word


def test_every_flipped_bit_and_every_cut_is_an_error():
    payload = TICKET.frame(b"some body")
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptMessage, UnsupportedMessage)) as caught:
            TICKET.open(bytes(damaged))
        assert cause(caught.value) == "corrupt"
    for length in range(len(payload)):
        with pytest.raises(CorruptMessage):
            TICKET.open(payload[:length])


@given(st.binary(max_size=200))
def test_garbage_is_a_typed_error(payload):
    with pytest.raises(KLMSError):
        TICKET.open(payload)


def test_the_fingerprint_is_of_all_parts():
    assert fingerprint([b"ab", b"c"]) == fingerprint([b"abc"]) != fingerprint([b"abd"])
    assert len(fingerprint([])) == 8
