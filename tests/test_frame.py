"""The frame around whatever travels or is stored."""

import pytest

from klms.errors import CorruptMessage, KLMSError, OutsizedMessage, SideInformationMismatch, UnsupportedMessage
from klms.frame import CAUSES, Frame, Kind, LostAgain, WrongRound, cause_of

FRAME = Frame(Kind.REPLY, 3, 7, b"12345678", b"body")


def test_the_frame_s_bytes_are_these():
    assert FRAME.to_bytes().hex() == "4b58010203000000070000003132333435363738626f647985547cd1"
    assert Frame.from_bytes(FRAME.to_bytes(), Kind.REPLY) == FRAME


def test_every_flipped_bit_of_a_frame_is_found():
    data = FRAME.to_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(KLMSError):
            Frame.from_bytes(bytes(changed), Kind.REPLY)


def test_frames_of_another_kind_version_round_or_model():
    with pytest.raises(CorruptMessage, match="expected: request"):
        Frame.from_bytes(FRAME.to_bytes(), Kind.REQUEST)
    newer = bytearray(FRAME.to_bytes())
    newer[2] = 9
    with pytest.raises(UnsupportedMessage, match="version 9"):
        Frame.from_bytes(bytes(newer), Kind.REPLY)
    others = {
        "stale": Frame(Kind.REQUEST, 4, 7, b"12345678"),
        "mismatch": Frame(Kind.REQUEST, 3, 8, b"12345678"),
    }
    for cause, expected in others.items():
        with pytest.raises(SideInformationMismatch) as error:
            FRAME.check_belongs_to(expected)
        assert cause_of(error.value) == cause
    with pytest.raises(SideInformationMismatch, match="another model") as error:
        FRAME.check_belongs_to(Frame(Kind.REQUEST, 3, 7, b"87654321"))
    assert not isinstance(error.value, WrongRound)


def test_every_cause_is_listed():
    kinds = (CorruptMessage, WrongRound, SideInformationMismatch, OutsizedMessage, LostAgain)
    assert {"error", "missing", *(cause_of(kind("")) for kind in kinds)} == set(CAUSES)
