"""What a target is, and what several of them need."""

import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from klms.methods.state import State


@dataclass(frozen=True)
class Target:
    """A reader of bytes from outside, and inputs that it accepts, to start from.

    It takes any bytes and returns, or raises a `KLMSError`: any other error, a time-out or too much memory is a
    finding. Checksums and agreement tags are made to fit, so that what they protect is reached, too.
    """

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]


def sealed(data: bytes, start: int = 0, before: int = 0) -> bytes:
    """Return the bytes with a checksum that fits in the place of the last four.

    It covers what begins at `start`; `before` is the checksum of what comes before that.
    """
    return data[:-4] + zlib.crc32(data[start:-4], before).to_bytes(4, "little")


def in_folder(files: Mapping[str, bytes], read: Callable[[Path], object]) -> None:
    """Write files into a folder, and read that."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        read(folder)


def small_state(size: int = 40) -> State:
    """Return a state of FedPM-KLMS."""
    theta = np.linspace(0, 1, size, dtype=np.float32).round(1)
    return State(1, {"theta": theta, "block_bounds": np.arange(0, size + 1, 10)}, {"sums": np.arange(4.0)})
