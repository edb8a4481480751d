"""Vectors that tests send through schemes, and what comes out."""

from dataclasses import replace

import numpy as np

from klms import SharedKey
from klms.compressors.base import Compressor
from klms.compressors.layout import Layout

KEY = SharedKey(5, 1, 0)


def flat(d: int) -> Layout:
    return Layout(("all",), ((d,),))


def normal(d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(d).astype(np.float32)


def through(scheme: Compressor, x: np.ndarray, number: int = 0) -> tuple[bytes, np.ndarray]:
    """Return the message of the client with this number, and the decoded vector; the scheme needs no side information.

    That of client 0 is made with `KEY`.
    """
    key = replace(KEY, client=number)
    message = scheme.encode(x, {}, key=key, rng=np.random.default_rng([9, number]))
    return message, scheme.decode(message, {}, key=key).vector


def relative_error(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.sum((y.astype(float) - x) ** 2) / np.sum(x.astype(float) ** 2))
