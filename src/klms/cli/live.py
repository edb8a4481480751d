"""Runs on the terminal: their progress while they train, and what came of them in a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from klms.cli.show import progress, show_table
from klms.printable import printable

if TYPE_CHECKING:
    from klms.engine.ledger import LedgerRecord
    from klms.methods.table import RunConfig
    from klms.runs.execution import Summary


class Live:
    """Progress of runs, one after the other: a bar on a terminal, one line per round elsewhere."""

    def __init__(self) -> None:
        self._bar, self._lines = progress(bar=True), Console(stderr=True, width=200)
        self._up = self._down = 0
        self._seconds = 0.0
        self._evaluated: LedgerRecord | None = None

    def __enter__(self) -> "Live":
        self._bar.start()
        self._task = self._bar.add_task("loading", total=None)
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def begin(self, config: "RunConfig", folder: Path) -> None:
        """Announce a run; one that is resumed keeps counting from where it was."""
        from klms.runs.run_folder import RunFolder

        self._up = self._down = 0
        self._seconds, self._evaluated = 0.0, None
        records = list(RunFolder(folder).records())
        for record in records:
            self._count(record)
        done = len(records)
        stage = "complete" if done == config.rounds else f"resuming after round {done}" if done else "loading"
        text = f"{config.method}: {stage} ({printable(folder)})"
        self._bar.update(self._task, description=text, completed=done, total=config.rounds)
        if not self._lines.is_terminal:
            self._lines.print(text, highlight=False, markup=False)

    def __call__(self, config: "RunConfig", record: "LedgerRecord") -> None:
        """Show a round that is complete."""
        self._count(record)
        text = f"{config.method}: round {record.round}/{config.rounds}"
        if (last := self._evaluated) is not None:
            text += f", accuracy {last.accuracy:.4f}" + (f" in round {last.round}" if last is not record else "")
        up, down, total = map(megabytes, (self._up, self._down, self._up + self._down))
        text += f", MB: {up} up, {down} down, {total} total; {record.bits_per_parameter:.4f} bits per parameter up"
        self._bar.update(self._task, description=text, completed=record.round, total=config.rounds)
        if not self._lines.is_terminal:
            self._lines.print(f"{text}, {self._seconds:.0f} s", highlight=False, markup=False)

    def _count(self, record: "LedgerRecord") -> None:
        self._up += record.uplink_bytes
        self._down += record.downlink_bytes
        self._seconds += record.seconds.get("total", 0.0)
        if record.accuracy is not None:
            self._evaluated = record


def show_summaries(summaries: "Sequence[Summary]", title: str) -> None:
    """Show one column per run, so that the names of the rows can say what is compared with what."""
    shown = {
        "accuracy": [_number(one.metrics.get("accuracy"), ".4f") for one in summaries],
        "bits per parameter up": [_number(one.bits_per_parameter, ".4f") for one in summaries],
        "MB up": [megabytes(one.uplink_bytes) for one in summaries],
        "MB down": [megabytes(one.downlink_bytes) for one in summaries],
        "MB total": [megabytes(one.total_bytes) for one in summaries],
        "up: x smaller than float32 up": [_number(one.times_smaller_up, ",.1f") for one in summaries],
        "total: x smaller than float32 both ways": [_number(one.times_smaller_total, ",.1f") for one in summaries],
        "encoding and decoding, share of the work": [_number(one.coding_share, ".1%") for one in summaries],
        "seconds": [_number(one.seconds, ".0f") for one in summaries],
    }
    methods = [one.method for one in summaries]
    show_table(("", *methods), [(name, *values) for name, values in shown.items()], title=title, right=methods)


def megabytes(count: int | None) -> str:
    """Return a number of bytes in megabytes."""
    return _number(None if count is None else count / 1e6, ",.3f")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
