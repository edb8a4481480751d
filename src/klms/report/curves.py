"""Measurements of a run by round: columns of numbers, which the page draws as curves and the CSV files list."""

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from klms.engine.ledger import LedgerRecord

Column = tuple[float | None, ...]
"""A number for every round; None where a round has no number."""
AXES = {"round": "round", "seconds": "seconds since the start", "up": "MB up", "down": "MB down", "total": "MB total"}
"""Columns that curves can be drawn against, with the labels of their axes. All but the first are running sums."""


class Curve(NamedTuple):
    """A figure of curves."""

    id: str
    title: str
    caption: str
    label: str
    """Label of the axis."""
    measures: dict[str, str]
    """Columns that the figure shows, fields of `LedgerRecord` or names in `_DERIVED`, with their labels."""
    log: bool = False
    """Whether the axis is logarithmic if the numbers are far apart."""


_TRAINING = "During the local training of a round, mean over its clients."
_BITS = "Size of the messages of a round, mean over its clients."
_BYTES = "Bytes that all clients of a round send and receive."
_KL = "KL of the clients' distributions from the shared one, and the bits of the indices that convey it."
_KL_MEASURES = {"kl_bits_per_parameter": "KL", "index_bits_per_parameter": "index bits"}
_CHOSEN = "Bits chosen to hold a quality; the heads of messages are not counted."
_NOISE = (
    "Noise in the mean update, relative to the update; noise that both directions add to the model, relative to the "
    "model; progress that clients spend on taking errors back; and the harm, which a quality holds at its target."
)
_NOISE_MEASURES = {"noise": "noise", "relative_error": "relative error", "repair_share": "repair share", "harm": "harm"}
CURVES = (
    Curve("accuracy", "Accuracy", "On the test data.", "accuracy", {"accuracy": "accuracy"}),
    Curve("nll", "Negative log-likelihood", "On the test data, in nats.", "nll", {"nll": "nll"}),
    Curve("loss", "Loss", "On the test data.", "loss", {"loss": "loss"}),
    Curve("train-loss", "Training loss", _TRAINING, "training loss", {"train_loss": "training loss"}),
    Curve("epsilon", "Privacy spent", "Epsilon up to that round.", "epsilon", {"epsilon": "epsilon"}),
    Curve("bits", "Bits per parameter up", _BITS, "bits/parameter up", {"bits": "bits/parameter up"}, log=True),
    Curve("megabytes", "Megabytes per round", _BYTES, "MB", {"round_up": "up", "round_down": "down"}, log=True),
    Curve("rates", "Rates", _CHOSEN, "bits/parameter", {"bits_up": "up", "bits_down": "down"}, log=True),
    Curve("noise", "Noise and the harm that it does", _NOISE, "relative energy", _NOISE_MEASURES, log=True),
    Curve("kl", "KL and the bits spent on it", _KL, "bits/parameter", _KL_MEASURES, log=True),
)
"""All figures of curves. To draw another field of the ledger, add an entry."""
_DERIVED: dict[str, Callable[[LedgerRecord], float | None]] = {
    "bits": lambda record: record.bits_per_parameter if record.aggregated else None,
    "round_up": lambda record: record.uplink_bytes / 1e6,
    "round_down": lambda record: record.downlink_bytes / 1e6,
}


def columns(records: Sequence[LedgerRecord]) -> dict[str, Column]:
    """Return the axes, and the columns of all curves that hold a number."""
    up = [record.uplink_bytes for record in records]
    down = [record.downlink_bytes for record in records]
    made: dict[str, Column] = {
        "round": tuple(float(record.round) for record in records),
        "up": _megabytes(up),
        "down": _megabytes(down),
        "total": _megabytes(map(operator.add, up, down)),
    }
    if all("total" in record.seconds for record in records):
        made["seconds"] = tuple(round(sum_, 3) for sum_ in accumulate(record.seconds["total"] for record in records))
    for name in (name for curve in CURVES for name in curve.measures):
        column = tuple(map(_DERIVED.get(name) or operator.attrgetter(name), records))
        if any(number is not None for number in column):
            made[name] = column
    return made


def _megabytes(sizes: Iterable[int]) -> Column:
    return tuple(size / 1e6 for size in accumulate(sizes))
