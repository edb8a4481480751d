"""The bench behind `klms bench mean`: what the average of N clients' vectors loses, for every scheme and rate.

The error is `|mean(v_hat) - mean(v)|^2 / mean(|v|^2)`. No unbiased scheme of independent clients can be below
`1 / (N (2^(2R) - 1))` at `R` bits per parameter on normal vectors (Gaussian rate-distortion theory). Bits are those of
messages that were decoded. What is measured is listed by the schemes themselves (`operating_points`). Beside each
unbiased scheme stands what EDEN loses at the same measured bits.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from klms.benchmarks.updates import KINDS, real_updates
from klms.codec import SharedKey
from klms.compressors import eden
from klms.compressors.base import Compressor, Vector
from klms.compressors.layout import Layout
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.errors import InvalidArgument

VECTORS = ("gaussian", "lognormal", *KINDS)
NAMES = tuple(name for name, scheme in UPDATE_SCHEMES.items() if scheme.operating_points)


@dataclass(frozen=True)
class Row:
    """One scheme on one kind of vectors."""

    vectors: str
    scheme: str
    setting: str
    unbiased: bool
    bits_per_parameter: float
    error: float
    """Normalised error of the average."""
    limit: float
    """Least error of any unbiased scheme at that rate, on normal vectors."""
    encode_ns: float
    """Nanoseconds per parameter on one thread."""
    decode_ns: float
    over_eden: float | None
    """Error over that of EDEN at the same measured bits; None for biased schemes, and above EDEN's highest rate."""


def make_vectors(kind: str, clients: int, d: int) -> tuple[Layout, list[Vector]]:
    """Return the clients' vectors; the real ones have a `d` of their own."""
    rng = np.random.default_rng(0)
    layout = Layout(("vector",), ((d,),))
    if kind == "gaussian":
        return layout, [rng.standard_normal(d).astype(np.float32) for _ in range(clients)]
    if kind == "lognormal":
        signs = (rng.integers(0, 2, d) * 2 - 1 for _ in range(clients))
        return layout, [(np.exp(rng.standard_normal(d)) * sign).astype(np.float32) for sign in signs]
    if kind in KINDS:
        return real_updates(kind, clients)
    raise InvalidArgument(f"vectors must be one of {', '.join(VECTORS)}; got {kind!r}")


def run(
    *, vectors: Sequence[str] = VECTORS, schemes: Sequence[str] = NAMES, clients: int = 10, d: int = 1 << 17
) -> Iterator[Row]:
    """Yield all rows, as they are measured."""
    for kind in vectors:
        layout, held = make_vectors(kind, clients, d)
        for name in schemes:
            for point in UPDATE_SCHEMES[name].operating_points:
                yield measure(kind, name, point, layout, held)


class Outcome(NamedTuple):
    """What a compressor did to all vectors."""

    bits_per_parameter: float
    error: float
    encode_ns: float
    decode_ns: float


def measure(kind: str, name: str, point: Mapping[str, Any], layout: Layout, held: Sequence[Vector]) -> Row:
    """Measure a scheme at one of its operating points."""
    scheme = UPDATE_SCHEMES[name]
    settings = scheme.settings.checked(point)
    outcome = average(scheme.make(layout, settings, 1), layout, held)
    rate, unbiased = outcome.bits_per_parameter, scheme.unbiased(settings)
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
    bits, encoding, decoding, total = 0, 0.0, 0.0, np.zeros(layout.d)
    for client, vector in enumerate(held):
        key = SharedKey(seed=1, round=1, client=client)
        times = [time.thread_time()]
        message = compressor.encode(vector, side, key=key, rng=np.random.default_rng([2, client]))
        times.append(time.thread_time())
        decoded = compressor.decode(message, side, key=key).vector
        times.append(time.thread_time())
        encoding, decoding = encoding + times[1] - times[0], decoding + times[2] - times[1]
        bits += 8 * len(message)
        total += decoded
    n = len(held)
    truth = np.mean(held, axis=0, dtype=np.float64)
    size = float(np.mean([np.sum(vector.astype(np.float64) ** 2) for vector in held]))
    error = float(np.sum((total / n - truth) ** 2)) / size
    per_parameter = 1e9 / n / layout.d
    return Outcome(bits / n / layout.d, error, encoding * per_parameter, decoding * per_parameter)


def eden_error(rate: float, layout: Layout, held: Sequence[Vector]) -> float:
    """Return EDEN's error at `rate` measured bits: its headers come off the bits that it is given."""
    outcome = average(eden.Eden(layout, rate, 1), layout, held)
    given = rate - (outcome.bits_per_parameter - rate)
    if given > 0:
        outcome = average(eden.Eden(layout, given, 1), layout, held)
    return outcome.error


def limit(rate: float, clients: int) -> float:
    """Return the least error of the average of `clients` unbiased, independent estimates at `rate` bits."""
    return float(1 / (clients * (2.0 ** (2 * rate) - 1)))


def best(rows: Sequence[Row], vectors: str, rate: float, headers: float = 0.03) -> Row:
    """Return the unbiased row of least error with at most `rate` bits, a share of headers aside: the one to pick."""
    most = (1 + headers) * rate
    fitting = [row for row in rows if row.unbiased and row.vectors == vectors and row.bits_per_parameter <= most]
    if not fitting:
        raise InvalidArgument(f"no unbiased scheme was measured at {rate} bits or below on {vectors} vectors")
    return min(fitting, key=lambda row: row.error)


def as_json(rows: Sequence[Row], clients: int) -> dict[str, object]:
    """Return the rows for machines."""
    return {"clients": clients, "rows": [asdict(row) for row in rows]}


def with_default_effort(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of all schemes that have no effort, and those with the default one."""
    return [row for row in rows if "effort" not in row.setting or "balanced" in row.setting]


def markdown(results: dict[str, list[dict[str, object]]]) -> str:
    """Return a table of what to pick at a few rates, with default effort, and what other efforts change."""
    rows = [Row(**row) for row in results["rows"]]  # type: ignore[arg-type]
    usual = with_default_effort(rows)
    columns = ("vectors", "about, bits", "best unbiased", "bits", "error", "over EDEN's", "fast", "best", "/ limit")
    lines = ["| " + " | ".join((*columns, "encode, ns", "decode, ns", "next best", "its error")) + " |"]
    lines.append("| --- " * 13 + "|")
    for kind, rate in product(dict.fromkeys(row.vectors for row in rows), (0.02, 0.1, 0.5, 1, 2, 4)):
        row = best(usual, kind, rate)
        other = best([other for other in usual if other.scheme != row.scheme], kind, rate, 0.1)
        twins = [row.setting.replace("balanced", effort) for effort in ("balanced", "fast", "best")]
        ratios = [twin.over_eden for name in twins for twin in rows if (twin.vectors, twin.setting) == (kind, name)]
        lines.append(
            f"| {kind} | {rate:g} | {row.scheme} | {row.bits_per_parameter:.3f} | {row.error:.3g} "
            + "".join(f"| {ratio or math.nan:.3g} " for ratio in ratios[:3])
            + f"| {row.error / row.limit:.2f} | {row.encode_ns:.0f} | {row.decode_ns:.0f} | {other.scheme} "
            f"| {other.error:.3g} |"
        )
    return "\n".join(lines)


def draw(rows: Sequence[Row], clients: int, path: Path | str) -> None:
    """Draw error against bits, one panel per kind of vectors, with the limit as a line."""
    from matplotlib.figure import Figure

    rows = with_default_effort(rows)
    kinds = list(dict.fromkeys(row.vectors for row in rows))
    names = list(dict.fromkeys(row.scheme for row in rows))
    columns = min(len(kinds), 3)
    lines = -(-len(kinds) // columns)
    figure = Figure(figsize=(4.6 * columns + 1.6, 4.2 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in panels[len(kinds) :]:
        axes.remove()
    measured = [row.bits_per_parameter for row in rows]
    rates = np.geomspace(min(measured), max(measured), 60)
    for axes, kind in zip(panels, kinds, strict=False):
        for place, name in enumerate(names):
            own = [row for row in rows if row.scheme == name]
            points = sorted((row.bits_per_parameter, row.error) for row in own if row.vectors == kind)
            if points:
                biased = not all(row.unbiased for row in own)
                line, label = (":", f"{name} (biased)") if biased else ("-", name)
                style = {"marker": "osD^vP*X"[place % 8], "markersize": 4, "linewidth": 1, "linestyle": line}
                axes.plot(*zip(*points, strict=True), label=label, **style)
        axes.plot(rates, [limit(rate, clients) for rate in rates], color="black", linewidth=1, label="limit, unbiased")
        axes.set(xscale="log", yscale="log", title=f"{kind} vectors", xlabel="bits per parameter")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f"normalised error of the average of {clients}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=150)
