"""What a run measured, round by round: columns of numbers that the page draws as curves and the CSV files list."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from klms.engine.ledger import LedgerRecord
from klms.report.collect import Run

Value = Callable[[LedgerRecord], float | None]
Column = tuple[float | None, ...]


@dataclass(frozen=True)
class Track:
    """The columns of one run, by name; an entry is None where its round has no number."""

    run: str
    row: str
    """Name of the row of the table that the run belongs to."""
    seed: str
    columns: dict[str, Column]


AXES = {"round": "round", "seconds": "seconds since the start", "up": "MB up", "down": "MB down", "total": "MB total"}
"""Columns that curves can be drawn against, and how their axes are labelled. All but the first are running sums."""

MEASURED: dict[str, Value] = {
    "accuracy": lambda record: record.accuracy,
    "nll": lambda record: record.nll,
    "loss": lambda record: record.loss,
    "train_loss": lambda record: record.train_loss,
    "epsilon": lambda record: record.epsilon,
    "bits": lambda record: record.bits_per_parameter if record.aggregated else None,
    "kl": lambda record: record.kl_bits_per_parameter,
    "index": lambda record: record.index_bits_per_parameter,
    "round_up": lambda record: record.uplink_bytes / 1e6,
    "round_down": lambda record: record.downlink_bytes / 1e6,
}


def columns(run: Run) -> dict[str, Column]:
    """All columns that hold a number."""
    records = run.records
    up, down = [record.uplink_bytes for record in records], [record.downlink_bytes for record in records]
    made: dict[str, Column] = {"round": tuple(float(record.round) for record in records), "up": _megabytes(up)}
    if all("total" in record.seconds for record in records):
        made["seconds"] = tuple(round(sum_, 3) for sum_ in accumulate(record.seconds["total"] for record in records))
    made["down"] = _megabytes(down)
    made["total"] = _megabytes([sum(both) for both in zip(up, down, strict=True)])
    for name, value in MEASURED.items():
        column = tuple(map(value, records))
        if any(number is not None for number in column):
            made[name] = column
    return made


def _megabytes(sizes: Sequence[int]) -> Column:
    return tuple(size / 1e6 for size in accumulate(sizes))
