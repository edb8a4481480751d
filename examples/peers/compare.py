"""Run the codecs of other projects, each in an environment of its own, and `trellis` on the same updates.

    python examples/peers/compare.py --out results/peers.json
    python examples/peers/compare.py --peer OpenFL --vectors lenet

Every peer codes the updates of ten clients (PowerSGD: of two), and `trellis` codes them with as many bytes as the peer
used. The error of a message is its squared error relative to the update. The error of the average is what a server
gets: there, the errors of unbiased codes cancel, and the errors of biased codes do not. `trellis` is run in two
variants: with `echo=1`, which minimises the error of each message, and without bias for the average. Environments are
made once, in the folder of `--environments`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from peer import errors

from klms import SharedKey
from klms.benchmarks.mean import make_vectors
from klms.compressors.layout import Layout
from klms.compressors.trellis import MAX_RATE, MIN_RATE, Trellis

HERE = Path(__file__).parent
TORCH = "torch==2.13.0"
CLIENTS = 10
VECTORS = ("gaussian", "lenet", "conv6", "lstm", "transformer", "lora")
_TRIES = 4  # attempts to fit a message into a number of bytes


class Peer(NamedTuple):
    """A project to compare with: its script, and the packages to install in its environment, in this order."""

    script: str
    requirements: tuple[str, ...]


PEERS = {
    "OpenFL": Peer("with_openfl.py", (TORCH, "numpy==2.2.6", "openfl==1.9")),
    "NVFlare": Peer("with_nvflare.py", (TORCH, "nvflare==2.9.0")),
    "SZ3": Peer("with_sz3.py", ("numpy==2.4.6", "pysz==1.1.0")),
    "hivemind": Peer("with_hivemind.py", (TORCH, "numpy==2.2.6", "hivemind==1.1.12")),
    "PowerSGD": Peer("with_powersgd.py", (TORCH, "numpy==2.4.6")),
}


def environment(name: str, folder: Path) -> Path:
    """Return the interpreter of a peer's environment; create the environment if it does not exist."""
    home = folder / name.lower()
    python = home / "bin" / "python"
    if not (home / ".ready").exists():
        print(f"installing {name}, once: some minutes", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        for requirement in PEERS[name].requirements:
            subprocess.run([python, "-m", "pip", "install", "--quiet", requirement], check=True)
        (home / ".ready").touch()
    return python


def write_vectors(kind: str, path: Path) -> tuple[Layout, list[np.ndarray]]:
    """Write every client's arrays to the file that peers read; return their layout, and the arrays as vectors."""
    layout, vectors = make_vectors(kind, CLIENTS, 1 << 17)
    stored: dict[str, Any] = {"kind": kind, "names": list(layout.names), "clients": CLIENTS}
    for client, vector in enumerate(vectors):
        for n, (_, part) in enumerate(layout.split(vector)):
            stored[f"{client}.{n}"] = np.ascontiguousarray(part)
    np.savez(path, **stored)
    return layout, vectors


def rows_of(name: str, python: Path, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows that a peer's script prints, and report a script that fails."""
    done = subprocess.run([python, PEERS[name].script, path], cwd=HERE, capture_output=True, text=True)
    if done.returncode:
        print(f"{name} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def ours(layout: Layout, vectors: list[np.ndarray], nbytes: float) -> dict[str, float] | None:
    """Return errors and times of `trellis` at this number of bytes per message; None if it has no such rate."""
    rate = 8 * nbytes / layout.d
    if not MIN_RATE <= rate <= MAX_RATE:
        return None
    rate = fitting(layout, vectors[0], rate, nbytes)
    truth = [vector.astype(np.float64) for vector in vectors]
    unbiased, least = Trellis(layout, rate, threads=1), Trellis(layout, rate, threads=1, echo=1.0)
    decoded, close = [], []
    size = encoding = decoding = 0.0
    for client, vector in enumerate(vectors):
        key = SharedKey(1, 1, client)
        start = time.process_time()
        message = unbiased.encode(vector, {}, key=key, rng=np.random.default_rng(client))
        middle = time.process_time()
        decoded.append(unbiased.decode(message, {}, key=key).vector.astype(np.float64))
        decoding += time.process_time() - middle
        encoding += middle - start
        size += len(message)
        other = least.encode(vector, {}, key=key, rng=np.random.default_rng(client))
        close.append(least.decode(other, {}, key=key).vector.astype(np.float64))
    per_parameter = 1e9 / len(vectors) / layout.d
    return {
        "bytes": size / len(vectors),
        "error": errors(truth, close)[0],
        "average_error": errors(truth, decoded)[1],
        "encode_ns": encoding * per_parameter,
        "decode_ns": decoding * per_parameter,
    }


def fitting(layout: Layout, vector: np.ndarray, rate: float, nbytes: float) -> float:
    """Return a rate whose messages have at most this number of bytes."""
    for _ in range(_TRIES):
        message = Trellis(layout, rate, threads=1).encode(
            vector, {}, key=SharedKey(0, 0, 0), rng=np.random.default_rng(0)
        )
        if len(message) <= nbytes:
            return rate
        rate = max(MIN_RATE, rate * nbytes / len(message) * 0.999)
    return rate


def main() -> None:
    """Print a row per peer, setting and kind of vectors, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", action="append", choices=list(PEERS))
    parser.add_argument("--vectors", action="append", choices=VECTORS)
    parser.add_argument("--environments", type=Path, default=Path(".venv-peers"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.environments.resolve()
    pythons = {name: environment(name, folder) for name in options.peer or PEERS}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for kind in options.vectors or VECTORS:
            path = Path(temporary) / f"{kind}.npz"
            layout, vectors = write_vectors(kind, path)
            for name, python in pythons.items():
                for row in rows_of(name, python, path):
                    row["trellis"] = ours(layout, vectors[: row["clients"]], row["bytes"])
                    rows.append(row)
                    print(line_of(row), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def line_of(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    head = f"{row['vectors']}: {row['peer']}, {row['setting']}: {row['bits_per_parameter']:.3f} bits"
    theirs = f"error {_number(row['error'])}, of the average {_number(row['average_error'])}"
    times = f"{row['encode_ns']:.0f} and {row['decode_ns']:.0f} ns"
    beside = row["trellis"]
    if beside is None:
        return f"{head}, {theirs}, {times}; trellis has no such rate"
    own = f"{beside['error']:.3g}, {beside['average_error']:.3g}"
    own_times = f"{beside['encode_ns']:.0f} and {beside['decode_ns']:.0f} ns"
    return f"{head}, {theirs}, {times}; trellis {own}, {own_times}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()
