"""`klms demo`: clients in processes of their own encode masks, the server decodes what they wrote.

A FedPM round as the codec sees it: the server and ten clients share a million mask probabilities, each client's
training has moved them, and each sends a sample of its own mask.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from klms.codec import Bernoulli, Codec, SharedKey, adaptive_blocks, inspect

D = 1_000_000
CLIENTS = 10
SEED, ROUND = 7, 1
TARGET_BITS = 8.0


@dataclass(frozen=True)
class Outcome:
    """What the round cost and what arrived."""

    d: int
    clients: int
    message_bytes: int
    block_size_bytes: int
    kl_bits_per_parameter: float
    survived: float
    """Fraction of the clients' mean update that the server's mean shows, in expectation."""
    error: float
    """Root mean square error of the server's mean mask against the clients' mean probabilities, and the same"""
    vanilla_error: float
    """had every client sent its sampled mask bit by bit."""


def _logit(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.log(x / (1 - x))


def _theta() -> npt.NDArray[np.float64]:
    return np.random.default_rng(SEED).uniform(0.1, 0.9, D)


def _trained(client: int) -> npt.NDArray[np.float64]:
    """What local training made of the probabilities: a move that the clients share and one of its own."""
    common = np.random.default_rng([SEED, 1]).normal(0, 0.25, D)
    own = np.random.default_rng([SEED, 2, client]).normal(0, 0.1, D)
    return 1 / (1 + np.exp(-(_logit(_theta()) + common + own)))


def client_sends(client: int, folder: str) -> str:
    """One client, in its own process: encode, write the message to a file."""
    p, q = Bernoulli(_theta()), Bernoulli(_trained(client))
    blocks = adaptive_blocks(q.kl(p), target=TARGET_BITS)
    message = Codec(bits=8, threads=1).encode(
        q, p, blocks, key=SharedKey(SEED, ROUND, client), rng=np.random.default_rng(), send_blocks=True
    )
    path = Path(folder) / f"client-{client}.klms"
    path.write_bytes(message)
    return str(path)


def run(folder: Path, workers: int, progress: Callable[[], None]) -> Outcome:
    """The round. `progress` is called once for every client that is done."""
    p = Bernoulli(_theta())
    codec = Codec()
    total = np.zeros(D)
    mean_q = np.zeros(D)
    vanilla = np.zeros(D)
    kl = 0.0
    sent = sizes = 0
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        paths = pool.map(client_sends, range(CLIENTS), [str(folder)] * CLIENTS)
        for client, path in enumerate(paths):
            message = Path(path).read_bytes()
            total += codec.decode(message, p, key=SharedKey(SEED, ROUND, client))
            info = inspect(message)
            sent += info.total_bytes
            sizes += info.block_size_bytes
            kl += info.mean_kl * info.blocks / D
            phi = _trained(client)
            mean_q += phi
            vanilla += np.random.default_rng(client).random(D) < phi
            progress()
    update = mean_q / CLIENTS - p.probability
    arrived = total / CLIENTS - p.probability
    return Outcome(
        d=D,
        clients=CLIENTS,
        message_bytes=sent,
        block_size_bytes=sizes,
        kl_bits_per_parameter=kl / CLIENTS,
        survived=float(arrived @ update / (update @ update)),
        error=float(np.sqrt(np.mean((total - mean_q) ** 2)) / CLIENTS),
        vanilla_error=float(np.sqrt(np.mean((vanilla - mean_q) ** 2)) / CLIENTS),
    )
