"""Progress on the terminal, and the results of runs in a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from klms.cli.show import console, say, show_table
from klms.engine.ledger import (
    LedgerRecord,
    downlink_bytes,
    last_evaluated,
    seconds_per_round,
    total_bytes,
    uplink_bytes,
)
from klms.engine.stopping import complete, rounds_left
from klms.experiments.catalogue import Cell
from klms.methods.table import RunConfig
from klms.printable import printable
from klms.runs.execution import Summary
from klms.runs.run_folder import RunFolder


class Live:
    """Progress on standard error: bars on a terminal, lines elsewhere. Calling it shows a round of `klms run`."""

    def __init__(self) -> None:
        screen = Console(stderr=True)
        text = TextColumn("{task.description}", markup=False)  # paths may look like rich's markup
        columns = (text, BarColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._records: list[LedgerRecord] = []

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def show(self, text: str, done: int = 0, total: int | None = None, *, bar: str = "", line: str = "") -> None:
        """Show progress on the bar with this name; without a terminal, print `line` instead, unless it is empty."""
        if bar not in self._tasks:
            self._tasks[bar] = self._bars.add_task(text)
        self._bars.update(self._tasks[bar], description=text, completed=done, total=total)
        if self._bars.disable and line:
            _print(self._bars.console, line)

    def say(self, text: str) -> None:
        """Print a line on standard output, above the bars if they are on the same terminal."""
        if console().is_terminal and not self._bars.disable:
            _print(self._bars.console, text)
        else:
            say(text)

    def begin(self, config: RunConfig, folder: Path) -> None:
        """Announce a run; a resumed run keeps counting from its last round."""
        self._records = list(RunFolder(folder).records())
        done = len(self._records)
        stage = f"resuming after round {done}" if done else "loading"
        if complete(self._records, config):
            stage = "complete"
        text = f"{config.method}: {stage} ({printable(folder)})"
        self.show(text, done, config.rounds, line=text)

    def __call__(self, config: RunConfig, record: LedgerRecord) -> None:
        self._records.append(record)
        left = (seconds_per_round(self._records) or 0.0) * rounds_left(self._records, config)
        self.round(config.method, self._records, config.rounds, left)

    def round(
        self, run: str, records: Sequence[LedgerRecord], rounds: int, seconds_left: float, *, bar: str = ""
    ) -> None:
        """Show a complete round."""
        text = f"{run}: {_round_text(records, rounds)}"
        self.show(text, len(records), rounds, bar=bar, line=f"{text}; about {duration(seconds_left)} left")


class LiveGrid(Live):
    """Progress of the runs of an experiment: a bar for all runs, and a bar for each run under way."""

    def __init__(self, name: str, runs: int, complete: int) -> None:
        super().__init__()
        self._name = name
        self._runs = runs
        self._complete = complete
        self._show_all("")

    def round_of(self, cell: Cell, records: Sequence[LedgerRecord], seconds_left: float) -> None:
        """Show a complete round, and the remaining time of all runs together."""
        self.round(str(cell), records, cell.config.rounds, seconds_left, bar=str(cell))
        self._show_all(f", about {duration(seconds_left)} left")

    def end(self, cell: Cell) -> None:
        """Record that a run is complete."""
        self._complete += 1
        if str(cell) in self._tasks:
            self._bars.remove_task(self._tasks.pop(str(cell)))
        self._show_all("")

    def _show_all(self, more: str) -> None:
        self.show(f"{self._name}: {self._complete} of {self._runs} runs complete{more}", self._complete, self._runs)


def _print(lines: Console, text: str) -> None:
    lines.print(text, highlight=False, markup=False, soft_wrap=True)


def _round_text(records: Sequence[LedgerRecord], rounds: int) -> str:
    """Return the last round in words, with the bytes that all rounds sent."""
    last = records[-1]
    evaluated = last_evaluated(records)
    text = f"round {last.round}/{rounds}"
    if evaluated is not None and evaluated.accuracy is not None:
        earlier = f" in round {evaluated.round}" if evaluated is not last else ""
        text += f", accuracy {evaluated.accuracy:.4f}{earlier}"
    sizes = f"{megabytes(uplink_bytes(records))} up, {megabytes(downlink_bytes(records))} down"
    text += f", MB: {sizes}, {megabytes(total_bytes(records))} total"
    return f"{text}; {last.bits_per_parameter:.4f} bits per parameter up"


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> [duration(seconds) for seconds in (41.2, 130, 7300)]
    ['41 s', '2 min', '2 h 2 min']
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def show_summaries(summaries: Sequence[Summary], title: str) -> None:
    """Show one column per run, so that row names have room to say what is compared."""
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


def megabytes(count: int) -> str:
    """Return a number of bytes in megabytes."""
    return f"{count / 1e6:,.3f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
