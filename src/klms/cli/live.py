"""Runs on the terminal: their progress while they train, and what came of them in a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import TaskID

from klms.cli.show import console, progress, say, show_table
from klms.printable import printable

if TYPE_CHECKING:
    from klms.engine.ledger import LedgerRecord
    from klms.experiments.catalogue import Cell
    from klms.experiments.grid import CellStatus
    from klms.experiments.watch import CompletedRound
    from klms.methods.table import RunConfig
    from klms.runs.execution import Summary


class Live:
    """Progress of runs, one after the other: a bar on a terminal, one line per round elsewhere."""

    def __init__(self) -> None:
        self._bar, self._lines = progress(bar=True), Console(stderr=True)
        self._records: list[LedgerRecord] = []

    def __enter__(self) -> "Live":
        self._bar.start()
        self._task = self._bar.add_task("loading", total=None)
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def begin(self, config: "RunConfig", folder: Path) -> None:
        """Announce a run; one that is resumed keeps counting from where it was."""
        from klms.runs.run_folder import RunFolder

        self._records = list(RunFolder(folder).records())
        done = len(self._records)
        stage = "complete" if done == config.rounds else f"resuming after round {done}" if done else "loading"
        text = f"{config.method}: {stage} ({printable(folder)})"
        self._bar.update(self._task, description=text, completed=done, total=config.rounds)
        if not self._lines.is_terminal:
            _print(self._lines, text)

    def __call__(self, config: "RunConfig", record: "LedgerRecord") -> None:
        """Show a round that is complete."""
        from klms.engine.ledger import seconds_per_round

        self._records.append(record)
        text = f"{config.method}: {_round_text(self._records, config.rounds)}"
        self._bar.update(self._task, description=text, completed=record.round, total=config.rounds)
        if not self._lines.is_terminal:
            spent = sum(one.seconds.get("total", 0.0) for one in self._records)
            left = (seconds_per_round(self._records) or 0.0) * (config.rounds - record.round)
            _print(self._lines, f"{text}, {spent:.0f} s, about {duration(left)} left")


class LiveGrid:
    """Progress of the runs of an experiment: bars on a terminal, elsewhere one line per round of any run."""

    def __init__(self, name: str, runs: "Sequence[CellStatus]") -> None:
        self._bars, self._lines = progress(bar=True, remaining=False), Console(stderr=True)
        self._name, self._runs = name, len(runs)
        self._complete = sum(run.complete for run in runs)
        self._tasks: dict[str, TaskID] = {}
        rounds, done = sum(run.cell.config.rounds for run in runs), sum(run.rounds for run in runs)
        self._all = self._bars.add_task(self._title(), total=rounds, completed=done)

    def __enter__(self) -> "LiveGrid":
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def round(self, complete: "CompletedRound") -> None:
        """Show a round that is complete, and the time that all runs together will still take."""
        cell, records = complete.cell, complete.records
        text = f"{cell}: {_round_text(records, cell.config.rounds)}"
        left = f"about {duration(complete.seconds_left)} left"
        if str(cell) not in self._tasks:
            self._tasks[str(cell)] = self._bars.add_task(text)
        self._bars.update(self._tasks[str(cell)], description=text, completed=len(records), total=cell.config.rounds)
        self._bars.update(self._all, description=f"{self._title()}, {left}", advance=1)
        if not self._lines.is_terminal:
            _print(self._lines, f"{text}; {left}")

    def end(self, cell: "Cell") -> None:
        """Take note that a run is complete."""
        self._complete += 1
        if str(cell) in self._tasks:
            self._bars.remove_task(self._tasks.pop(str(cell)))
        self._bars.update(self._all, description=self._title())

    def say(self, text: str) -> None:
        """Print a line; above the bars, where they are on the same terminal."""
        if console().is_terminal and not self._bars.disable:
            _print(self._bars.console, text)
        else:
            say(text)

    def _title(self) -> str:
        return f"{self._name}: {self._complete} of {self._runs} runs complete"


def _print(lines: Console, text: str) -> None:
    lines.print(text, highlight=False, markup=False, soft_wrap=True)


def _round_text(records: "Sequence[LedgerRecord]", rounds: int) -> str:
    """Return the last of the rounds in words, with what all of them sent."""
    from klms.engine.ledger import last_evaluated, uplink_bytes

    last, evaluated = records[-1], last_evaluated(records)
    text = f"round {last.round}/{rounds}"
    if evaluated is not None and evaluated.accuracy is not None:
        text += f", accuracy {evaluated.accuracy:.4f}" + (
            f" in round {evaluated.round}" if evaluated is not last else ""
        )
    up, down = uplink_bytes(records), sum(record.downlink_bytes for record in records)
    text += f", MB: {megabytes(up)} up, {megabytes(down)} down, {megabytes(up + down)} total"
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


def megabytes(count: int) -> str:
    """Return a number of bytes in megabytes."""
    return f"{count / 1e6:,.3f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
