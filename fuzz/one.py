"""Fuzz one target with libFuzzer's options; `fuzz.run` starts this."""

import sys
from importlib import import_module
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["klms"]):
    from klms.errors import KLMSError

    TARGET = import_module(sys.argv[1]).TARGETS[sys.argv[2]]


def main() -> None:
    """Write the seeds of the target into the last folder, and fuzz until the time is over."""
    options = sys.argv[3:]
    for number, seed in enumerate(TARGET.seeds()):
        TARGET.read(seed)  # what we write ourselves must be read
        (Path(options[-1]) / f"seed-{number}").write_bytes(seed)

    def test(data: bytes) -> None:
        try:
            TARGET.read(data)
        except KLMSError:
            return

    atheris.Setup([sys.argv[0], *options], test)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
