"""Try a release as its users will: install what is in dist/ into empty environments, and run the README's examples.

    python tools/try_release.py dist

Each environment is made by the interpreter that runs this script, and removed afterwards. Nothing of the repository is
on its path. The first failure ends it with the output of what failed.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLE = "README's first example"


@dataclass(frozen=True)
class Trial:
    """An environment: a file of the release, its extras, and the commands that must work there."""

    pattern: str
    extras: str
    commands: tuple[str, ...]


TRIALS = (
    Trial("*.whl", "", ("klms --version", EXAMPLE)),
    Trial("*.tar.gz", "", (EXAMPLE,)),
    Trial("*.whl", "[learn,plots]", (EXAMPLE, "klms demo --rounds 2")),
)


def main() -> None:
    """Try all environments, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path)
    dist = parser.parse_args().dist.absolute()
    version = ".".join(map(str, sys.version_info[:3]))
    for trial in TRIALS:
        (file,) = dist.glob(f"klms-{trial.pattern}")
        for command, seconds in _tried(trial, file):
            print(f"Python {version}, {file.name}{trial.extras}: {command}: passed in {seconds:.0f} s", flush=True)


def _tried(trial: Trial, file: Path) -> list[tuple[str, float]]:
    """Return the commands and the seconds that each took, with the installation as the first."""
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder) / "venv" / "bin"
        subprocess.run([sys.executable, "-m", "venv", programs.parent], check=True)
        pip = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        found = [("installed", _seconds([*pip, "-c", ROOT / "constraints.txt", f"{file}{trial.extras}"], folder))]
        for command in trial.commands:
            program, *words = command.split()
            code = ["-c", first_example()]
            words = [programs / "python", *code] if command == EXAMPLE else [programs / program, *words]
            found.append((command, _seconds(words, folder)))
    return found


def _seconds(command: list[object], folder: str) -> float:
    """Run a command in a folder, and return how long it took; end the program if it fails."""
    started = time.monotonic()
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)[:200]} failed with {done.returncode}:\n{done.stdout[-4000:]}")
    return time.monotonic() - started


def first_example() -> str:
    """Return the first block of Python in the README."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]


if __name__ == "__main__":
    main()
