"""The bench behind `klms bench mean`: the error of the average of N clients' vectors, for every scheme and rate.

The error is `|mean(v_hat) - mean(v)|^2 / mean(|v|^2)`. On normal vectors, no unbiased scheme whose clients code
independently can have an error below `1 / (N (2^(2R) - 1))` at `R` bits per parameter (Gaussian rate-distortion
theory). Bits are counted on the messages that are decoded. The schemes themselves list the settings to measure
(`operating_points`). Every unbiased scheme is compared with EDEN at the same measured rate.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from klms.benchmarks.rows import shown
from klms.benchmarks.updates import KINDS, real_updates
from klms.codec import SharedKey
from klms.compressors import eden
from klms.compressors.base import Compressor, Vector
from klms.compressors.layout import Layout
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.errors import InvalidArgument
from klms.numerics.checks import check_name

VECTORS = ("gaussian", "lognormal", *KINDS)
NAMES = tuple(name for name, scheme in UPDATE_SCHEMES.items() if scheme.operating_points)


@dataclass(frozen=True)
class Row:
    """One scheme on one kind of vectors."""

    vectors: str = shown("vectors")
    scheme: str = shown("scheme")
    setting: str = shown("setting")
    unbiased: bool = shown("unbiased")
    bits_per_parameter: float = shown("bits", ".4f")
    error: float = shown("error", ".4g")
    """Error of the average, as defined at the top of this file."""
    limit: float = shown("limit", ".4g")
    """Smallest possible error of an unbiased scheme at that rate, on normal vectors."""
    encode_ns: float = shown("encode, ns", ".0f")
    """Nanoseconds per parameter on one thread."""
    decode_ns: float = shown("decode, ns", ".0f")
    over_eden: float | None = shown("/ EDEN's", ".3f")
    """Error divided by EDEN's at the same measured rate; None for biased schemes, and above EDEN's highest rate."""


def make_vectors(kind: str, clients: int, d: int) -> tuple[Layout, list[Vector]]:
    """Return the clients' vectors; `d` does not apply to real updates."""
    if kind in KINDS:
        return real_updates(kind, clients)
    rng = np.random.default_rng(0)
    layout = Layout(("vector",), ((d,),))
    if kind == "gaussian":
        return layout, [rng.standard_normal(d).astype(np.float32) for _ in range(clients)]
    signs = (rng.integers(0, 2, d) * 2 - 1 for _ in range(clients))
    return layout, [(np.exp(rng.standard_normal(d)) * sign).astype(np.float32) for sign in signs]


def run(
    *, vectors: Sequence[str] = VECTORS, schemes: Sequence[str] = NAMES, clients: int = 10, d: int = 1 << 17
) -> Iterator[Row]:
    """Yield all rows, as they are measured."""
    for kind in vectors:
        check_name("kind of vectors", kind, VECTORS)
    for name in schemes:
        check_name("scheme", name, NAMES)
    for kind in vectors:
        layout, held = make_vectors(kind, clients, d)
        for name in schemes:
            for point in UPDATE_SCHEMES[name].operating_points:
                yield measure(kind, name, point, layout, held)


class Outcome(NamedTuple):
    """Bits, error and times of a compressor over all vectors."""

    bits_per_parameter: float
    error: float
    encode_ns: float
    decode_ns: float


def measure(kind: str, name: str, point: Mapping[str, Any], layout: Layout, held: Sequence[Vector]) -> Row:
    """Measure a scheme at one of its operating points."""
    scheme = UPDATE_SCHEMES[name]
    settings = scheme.settings.checked(point)
    outcome = average(scheme.make(layout, settings, 1), layout, held)
    rate = outcome.bits_per_parameter
    unbiased = scheme.unbiased(settings)
    return Row(
        vectors=kind,
        scheme=name,
        setting=", ".join(f"{setting} {value}" for setting, value in point.items()),
        unbiased=unbiased,
        limit=limit(rate, len(held)),
        over_eden=outcome.error / eden_error(rate, layout, held) if unbiased and rate <= eden.MAX_RATE else None,
        **outcome._asdict(),
    )


def average(compressor: Compressor, layout: Layout, held: Sequence[Vector]) -> Outcome:
    """Encode every client's vector, decode and average them."""
    side = compressor.start()
    first = compressor.encode(held[0], side, key=SharedKey(0, 0, 0), rng=np.random.default_rng(0))  # compiles
    compressor.decode(first, side, key=SharedKey(0, 0, 0))
    bits = 0
    encoding = decoding = 0.0
    total = np.zeros(layout.d)
    for client, vector in enumerate(held):
        key = SharedKey(seed=1, round=1, client=client)
        start = time.thread_time()
        message = compressor.encode(vector, side, key=key, rng=np.random.default_rng([2, client]))
        middle = time.thread_time()
        total += compressor.decode(message, side, key=key).vector
        encoding += middle - start
        decoding += time.thread_time() - middle
        bits += 8 * len(message)
    n = len(held)
    truth = np.mean(held, axis=0, dtype=np.float64)
    size = float(np.mean([np.sum(vector.astype(np.float64) ** 2) for vector in held]))
    error = float(np.sum((total / n - truth) ** 2)) / size
    per_parameter = 1e9 / n / layout.d
    return Outcome(bits / n / layout.d, error, encoding * per_parameter, decoding * per_parameter)


def eden_error(rate: float, layout: Layout, held: Sequence[Vector]) -> float:
    """Return EDEN's error when its messages, headers included, take `rate` bits per parameter."""
    outcome = average(eden.Eden(layout, rate, 1), layout, held)
    given = rate - (outcome.bits_per_parameter - rate)
    if given > 0:
        outcome = average(eden.Eden(layout, given, 1), layout, held)
    return outcome.error


def limit(rate: float, clients: int) -> float:
    """Return the smallest possible error of an average of `clients` independent, unbiased estimates at this rate."""
    return float(1 / (clients * (2.0 ** (2 * rate) - 1)))


def best(rows: Sequence[Row], vectors: str, rate: float, headers: float = 0.03) -> Row:
    """Return the unbiased row with the smallest error, at `(1 + headers) rate` bits per parameter at most."""
    most = (1 + headers) * rate
    fitting = [row for row in rows if row.unbiased and row.vectors == vectors and row.bits_per_parameter <= most]
    if not fitting:
        raise InvalidArgument(f"no unbiased scheme was measured at {rate} bits or below on {vectors} vectors")
    return min(fitting, key=lambda row: row.error)


def with_default_effort(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without an `effort` setting, and the rows with the default effort."""
    return [row for row in rows if "effort" not in row.setting or "balanced" in row.setting]
