import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms.errors import CorruptMessage, KLMSError, UnreadableFile
from klms.printable import printable


@given(st.text(st.characters(codec=None)))
def test_what_is_left_can_be_printed_anywhere_on_one_line(text):
    shown = printable(text)
    assert shown.isprintable()
    assert shown.encode().decode() == shown
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize("character", ["\x1b", "\r", "\x7f", "\x9b", "\u202e", "\u2028", "\ud800", "\n"])
def test_characters_that_a_terminal_obeys_are_escaped(character):
    assert printable(f"a{character}b") == f"a{character!r}b".replace("'", "")


def test_line_ends_may_be_kept():
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def test_errors_are_printable_whatever_they_quote():
    """Whoever prints an error, a log, a traceback or the command line, prints what it quotes from a file."""
    error = CorruptMessage("\x1b]0;title\x07 and \ud800\nsecond line")
    assert str(error) == "\\x1b]0;title\\x07 and \\ud800\nsecond line"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(KLMSError(error)) == str(error)
    assert str(UnreadableFile(22, "it is \x1b", "x")) == "[Errno 22] it is \\x1b: 'x'"
