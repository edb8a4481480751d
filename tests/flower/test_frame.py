import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms.errors import CorruptMessage, KLMSError, SideInformationMismatch, UnsupportedMessage

pytest.importorskip("flwr")

from klms.exchange.frame import ARRAYS, METHOD, OVERHEAD, MessageFrame, WrongRound, cause_of, fingerprint, read_frame

FRAME = MessageFrame(ARRAYS, 3, 7, b"12345678")


def test_golden_bytes():
    payload = MessageFrame(METHOD, 3, 7, b"12345678").write(b"message", b"head")
    assert payload.hex() == "4b46020203000000070000003132333435363738040000006375baba686561646d657373616765"


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_what_was_written_is_read(head, message):
    payload = FRAME.write(message, head)
    assert len(payload) == OVERHEAD + len(head) + len(message)
    assert read_frame(payload) == (FRAME, head, message)


@pytest.mark.parametrize(
    ("other", "error", "cause"),
    [
        (MessageFrame(ARRAYS, 2, 7, b"12345678"), WrongRound, "stale"),
        (MessageFrame(ARRAYS, 3, 6, b"12345678"), SideInformationMismatch, "mismatch"),
        (MessageFrame(METHOD, 3, 7, b"12345678"), SideInformationMismatch, "mismatch"),
        (MessageFrame(ARRAYS, 3, 7, b"other..."), SideInformationMismatch, "mismatch"),
    ],
)
def test_payloads_for_another_purpose_are_told_apart(other, error, cause):
    with pytest.raises(error) as caught:
        FRAME.check(other)
    assert cause_of(caught.value) == cause


def test_every_flipped_bit_and_every_cut_of_header_and_head_is_an_error():
    payload = FRAME.write(b"", b"some head")
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptMessage, UnsupportedMessage)) as caught:
            read_frame(bytes(damaged))
        assert cause_of(caught.value) == "corrupt"
    for length in range(len(payload)):
        with pytest.raises(CorruptMessage):
            read_frame(payload[:length])


def test_version_1_is_refused():
    golden = bytes.fromhex("4b46010203000000070000003132333435363738626f647995e37d3d")
    with pytest.raises(UnsupportedMessage, match="frame version 1; this release reads version 2"):
        read_frame(golden)


@given(st.binary(max_size=200))
def test_garbage_is_a_typed_error(payload):
    with pytest.raises(KLMSError):
        read_frame(payload)


def test_the_fingerprint_covers_all_parts():
    assert fingerprint([b"ab", b"c"]) == fingerprint([b"abc"]) != fingerprint([b"abd"])
    assert len(fingerprint([])) == 8
