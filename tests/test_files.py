import os

import pytest

from klms import files
from klms.errors import KLMSError, RunFolderError, UnreadableFile
from tests.support.odd_files import ODD, without_waiting


@pytest.fixture(autouse=True)
def never_wait():
    with without_waiting():
        yield


@pytest.mark.parametrize("kind", ODD)
def test_what_is_not_a_regular_file_of_bounded_size_is_refused(kind, tmp_path):
    ODD[kind](tmp_path / "x")
    with pytest.raises(UnreadableFile, match=kind) as caught:
        files.read(tmp_path / "x", 1000)
    assert "replace it or remove it" in caught.value.strerror
    assert caught.value.filename == str(tmp_path / "x")
    assert isinstance(caught.value, KLMSError)
    assert isinstance(caught.value, OSError)


def test_the_largest_size_is_allowed(tmp_path):
    (tmp_path / "x").write_bytes(bytes(10))
    assert files.read(tmp_path / "x", 10) == bytes(10)
    with pytest.raises(UnreadableFile, match="it has 10 bytes, and at most 9 are read"):
        files.read(tmp_path / "x", 9)


def test_a_link_to_a_regular_file_is_read(tmp_path):
    (tmp_path / "x").write_bytes(b"content")
    (tmp_path / "link").symlink_to("x")
    assert files.read(tmp_path / "link", 10) == b"content"


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "x", 10)


@pytest.mark.parametrize("kind", [*ODD, "a link"])
def test_writing_waits_for_nothing_and_follows_no_link(kind, tmp_path):
    (tmp_path / "precious").write_bytes(b"precious")
    for name in ("x", "ledger", "lock"):
        if kind == "a link":
            (tmp_path / name).symlink_to("precious")
        else:
            ODD[kind](tmp_path / name)
    if kind == "a folder":
        with pytest.raises(RunFolderError, match="cannot be written"):
            files.replace(tmp_path / "x", b"content")
    else:
        files.replace(tmp_path / "x", b"content")
        assert (tmp_path / "x").read_bytes() == b"content"
        assert not (tmp_path / "x").is_symlink()
    if not kind.startswith("it has"):
        with pytest.raises(RunFolderError, match="cannot be written"):
            files.append(tmp_path / "ledger", b"line")
        with pytest.raises(OSError, match=r"it is a|Is a directory"):
            files.open_lock(tmp_path / "lock")
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert {path.name for path in tmp_path.iterdir()} == {"precious", "x", "ledger", "lock"}


def test_other_files_are_kept_whatever_their_names(tmp_path):
    (tmp_path / "x.new").write_bytes(b"precious")
    files.replace(tmp_path / "x", b"content")
    with pytest.raises(TypeError):
        files.replace(tmp_path / "x", "text")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x.new": b"precious", "x": b"content"}


def test_two_may_write_the_same_file_at_once(tmp_path):
    with files.replacing(tmp_path / "x") as first:
        with files.replacing(tmp_path / "x") as second:
            second.write(b"second")
        assert (tmp_path / "x").read_bytes() == b"second"
        first.write(b"first")
    assert (tmp_path / "x").read_bytes() == b"first"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    with files.replacing(tmp_path / "x"):
        (left,) = tmp_path.iterdir()
    kept = {"x", "x.new", "klms-notes.new", f"klms-{'g' * 16}.new"}
    for name in {left.name, *kept}:
        (tmp_path / name).write_bytes(b"content")
    files.remove_partial(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_files_are_made_for_whom_the_user_s_mask_allows(tmp_path):
    before = os.umask(0o022)
    try:
        files.replace(tmp_path / "x", b"")
        files.append(tmp_path / "y", b"")
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {"x": 0o644, "y": 0o644}
