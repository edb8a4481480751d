"""Everything that the page shows, as one document: the same for the written and for the live page."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from klms.engine import ledger
from klms.report import plots, table
from klms.report.collect import Remark, Run, collect
from klms.report.figures import Figure
from klms.report.groups import Group, Task, tasks


@dataclass(frozen=True)
class Section:
    """A task with its table and figures."""

    task: Task
    table: table.Table
    figures: list[Figure]


@dataclass(frozen=True)
class Report:
    """Tables and figures of all runs that were found."""

    sections: list[Section]
    left_out: list[Remark]
    incomplete: list[Remark]

    @property
    def groups(self) -> list[Group]:
        return [group for section in self.sections for group in section.task.groups]

    @property
    def runs(self) -> int:
        return sum(len(group.runs) + len(group.unfinished) for group in self.groups)


def make(places: Sequence[Path]) -> Report:
    """Report on all runs in `places`."""
    found = collect(places)
    made, repeated = tasks(found.runs)
    sections = [Section(task, table.make(task), plots.make(task)) for task in made]
    gone = {remark.name for remark in repeated}
    return Report(sections, [*found.left_out, *repeated], [r for r in found.incomplete if r.name not in gone])


def as_json(report: Report, *, csv: bool = False) -> dict[str, object]:
    """Convert to what the page's script reads; `csv` says that the CSV files of the figures lie beside the page."""
    return {
        "runs": report.runs,
        "all_finished": all(group.finished and not group.unfinished for group in report.groups),
        "left_out": [asdict(remark) for remark in report.left_out],
        "incomplete": [asdict(remark) for remark in report.incomplete],
        "csv": csv,
        "tasks": [
            {
                "slug": section.task.slug,
                "title": section.task.title,
                "subtitle": section.task.subtitle,
                "table": asdict(section.table),
                "runs": [_run(group, run) for group in section.task.groups for run in (*group.runs, *group.unfinished)],
                "figures": [{"kind": figure.kind, **asdict(figure)} for figure in section.figures],
            }
            for section in report.sections
        ],
    }


def _run(group: Group, run: Run) -> dict[str, object]:
    """One run by itself, so that the means of the table can be checked."""
    rounds = f"{len(run.records)} of {run.rounds}" + (", not in the mean" if run in group.unfinished else "")
    made = {"name": run.name, "group": group.name, "seed": run.seed, "rounds": rounds}
    sizes = {"up": ledger.uplink_bytes, "down": ledger.downlink_bytes, "total": ledger.total_bytes}
    sent = {name: table.megabytes(size(run.records)) for name, size in sizes.items()}
    return {**made, "accuracy": table.accuracy(run), "bits": run.bits, "megabytes": sent}
