"""Code that all peers' scripts share: read vectors, code them, and print one line of JSON per setting.

This module runs in each peer's own environment, and needs only NumPy.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def read() -> tuple[str, list[Arrays]]:
    """Return the kind of the vectors and every client's arrays, from the file that the first argument names."""
    with np.load(sys.argv[1], allow_pickle=False) as stored:
        kind = str(stored["kind"])
        names = [str(name) for name in stored["names"]]
        clients = int(stored["clients"])
        updates = [{name: stored[f"{client}.{n}"] for n, name in enumerate(names)} for client in range(clients)]
    return kind, updates


def flat(arrays: Arrays) -> np.ndarray:
    """Return all entries as one vector."""
    return np.concatenate([np.asarray(array, dtype=np.float64).reshape(-1) for array in arrays.values()])


def errors(truth: list[np.ndarray], decoded: list[np.ndarray]) -> tuple[float, float]:
    """Return the mean relative squared error of a message, and the relative squared error of the average."""
    energies = [float(np.sum(one**2)) for one in truth]
    lost = [float(np.sum((a - b) ** 2)) for a, b in zip(decoded, truth, strict=True)]
    average = np.mean(decoded, axis=0) - np.mean(truth, axis=0)
    return float(np.mean(lost) / np.mean(energies)), float(np.sum(average**2) / np.mean(energies))


def measure(
    peer: str, setting: str, encode: Callable[[Arrays], tuple[Any, int]], decode: Callable[[Any], Arrays]
) -> None:
    """Print a row. `encode` returns a message for `decode`, and the number of bytes of that message on the wire."""
    kind, updates = read()
    decode(encode(updates[0])[0])  # loads and compiles, outside of the measurement
    nbytes = 0
    encoding = decoding = 0.0
    decoded = []
    for update in updates:
        start = time.process_time()
        message, size = encode(update)
        middle = time.process_time()
        arrays = decode(message)
        decoding += time.process_time() - middle
        encoding += middle - start
        nbytes += size
        decoded.append(flat({name: arrays[name] for name in update}))
    one, average = (_finite(error) for error in errors([flat(update) for update in updates], decoded))
    show(peer, kind, setting, len(updates), decoded[0].size, nbytes, one, average, encoding, decoding)


def _finite(error: float) -> float | None:
    """Return the error, or None if it is not finite, which JSON cannot express."""
    return error if math.isfinite(error) else None


def show(
    peer: str,
    kind: str,
    setting: str,
    clients: int,
    parameters: int,
    nbytes: float,
    error: float | None,
    average_error: float | None,
    encoding: float,
    decoding: float,
) -> None:
    """Print a row of these totals over all clients."""
    per_parameter = 1e9 / clients / parameters
    row = {
        "vectors": kind,
        "peer": peer,
        "setting": setting,
        "clients": clients,
        "parameters": parameters,
        "bytes": nbytes / clients,
        "bits_per_parameter": 8 * nbytes / clients / parameters,
        "error": error,
        "average_error": average_error,
        "encode_ns": encoding * per_parameter,
        "decode_ns": decoding * per_parameter,
    }
    print(json.dumps(row), flush=True)
