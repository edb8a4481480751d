"""The bench behind `klms bench server`: time and memory to decode and aggregate the messages of many clients.

The server keeps running sums, so its memory must not grow with the number of clients, and its time must be linear in
the number of clients. Messages are made first and wait in a file, as they would in a network's buffers. The memory that
is measured is what aggregation needs in addition to the state before the round. It includes arrays that the compressor
derives from that state, such as `p`.
"""

import tempfile
import timeit
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np

from klms.benchmarks.codec import peak_extra_bytes
from klms.benchmarks.rows import shown
from klms.compressors.layout import Layout
from klms.compressors.schemes import SCHEMES
from klms.learning.examples import Schedule
from klms.methods.base import Method
from klms.methods.dense import Dense
from klms.methods.fedpm import FedPM, FedPMSettings
from klms.methods.state import State
from klms.numerics.checks import check_name

if TYPE_CHECKING:
    from klms.learning.learner import Learner

SCHEME_NAMES = ("eden", "qsgd", "qsgd-klms", "mask-klms")
_UPDATES = 16  # number of distinct updates; every message still has a key of its own


@dataclass(frozen=True)
class Row:
    """One round of aggregation."""

    scheme: str = shown("scheme")
    parameters: int = shown("parameters", ",")
    messages: int = shown("messages", ",")
    bits_per_parameter: float = shown("bits/parameter", ".4f")
    seconds: float = shown("seconds", ".2f")
    ms_per_message: float = shown("ms/message", ".2f")
    peak_models: float | None = shown("peak memory, models", ".2f")
    """Memory in units of the model's float32 size; None if the system does not report it."""


def run(
    *, schemes: Sequence[str] = SCHEME_NAMES, d: int = 1_000_000, messages: Sequence[int] = (250, 500, 1000)
) -> Iterator[Row]:
    """Yield one row per scheme and number of messages."""
    for name in schemes:
        method = method_for(name, d)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "messages"
            sizes = _write_messages(method, max(messages), file)
            _aggregate(method, method.init(), file, sizes[:2])  # compiles
            for count in messages:
                yield _measure(name, method_for(name, d), file, sizes[:count])


def method_for(scheme: str, d: int) -> Method:
    """Return the method that sends `d` parameters through a scheme, without a network to train."""
    check_name("scheme", scheme, SCHEMES)
    layout = Layout(("weights",), ((d,),))
    compressor = SCHEMES[scheme].create(layout, {})
    network = SimpleNamespace(initial=lambda seed: np.zeros(d, dtype=np.float32))
    learner = cast("Learner", SimpleNamespace(layout=layout, network=network))
    schedule = Schedule(1, 1, 0.1, "sgd")
    if SCHEMES[scheme].codes == "masks":
        return FedPM(learner, 1, 1, compressor, schedule, FedPMSettings())
    return Dense(learner, 1, 1, compressor, schedule, 1.0)


def _write_messages(method: Method, count: int, file: Path) -> list[int]:
    rng = np.random.default_rng(0)
    side = method.init().shared
    shape = (_UPDATES, method.layout.d)
    drawn = rng.beta(60, 60, shape) if isinstance(method, FedPM) else rng.normal(0, 0.01, shape)
    updates = drawn.astype(np.float32)
    sizes = []
    with file.open("wb") as out:
        for client in range(count):
            update = updates[client % _UPDATES]
            sizes.append(out.write(method.compressor.encode(update, side, key=method.key(1, client), rng=rng)))
    return sizes


def _aggregate(method: Method, state: State, file: Path, sizes: Sequence[int]) -> None:
    received = method.receive(state)
    with file.open("rb") as messages:
        for client, size in enumerate(sizes):
            received.add(method.decode(state, client, messages.read(size)), size)
    method.conclude(state, received)


def _measure(scheme: str, method: Method, file: Path, sizes: Sequence[int]) -> Row:
    d = method.layout.d
    peak = peak_extra_bytes(partial(_aggregate, method, method.init(), file, sizes))
    seconds = timeit.timeit(partial(_aggregate, method, method.init(), file, sizes), number=1)
    return Row(
        scheme=scheme,
        parameters=d,
        messages=len(sizes),
        bits_per_parameter=8 * sum(sizes) / len(sizes) / d,
        seconds=seconds,
        ms_per_message=1000 * seconds / len(sizes),
        peak_models=None if peak is None else peak / (4 * d),
    )
