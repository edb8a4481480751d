"""Everything that the page shows, as one document: the same for the written and for the live page."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from klms.engine import ledger
from klms.report import plots, table
from klms.report.collect import FILES, Remark, Run, collect, text
from klms.report.figures import Figure
from klms.report.groups import Group, Task, tasks, value_text
from klms.report.tracks import columns

Link = Callable[[Path], str]
"""Returns the address of a file of a run, as the page links to it; empty if there is none."""


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


def make(places: Sequence[Path | str]) -> Report:
    """Report on all runs in `places`."""
    found = collect(places)
    made, repeated = tasks(found.runs)
    sections = [Section(task, table.make(task), plots.make(task)) for task in made]
    gone = {remark.name for remark in repeated}
    return Report(sections, [*found.left_out, *repeated], [r for r in found.incomplete if r.name not in gone])


def as_json(report: Report, *, csv: bool = False, link: Link = lambda path: "") -> dict[str, object]:
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
                "axes": plots.axes(section.task),
                "runs": [
                    _run(row, run, averaged=run in group.runs, link=link)
                    for row, group in enumerate(section.task.groups)
                    for run in (*group.runs, *group.unfinished)
                ],
                "figures": [figure.drawn() for figure in section.figures],
            }
            for section in report.sections
        ],
    }


def _run(row: int, run: Run, *, averaged: bool, link: Link) -> dict[str, object]:
    """One run by itself, so that the means of the table can be checked and runs can be compared."""
    sizes = {"up": ledger.uplink_bytes, "down": ledger.downlink_bytes, "total": ledger.total_bytes}
    links = {name: link(run.folder / name) for name in FILES if (run.folder / name).is_file()}
    return {
        "name": run.name,
        "row": row,
        "averaged": averaged,
        "seed": run.seed,
        "rounds": f"{len(run.records)} of {run.rounds}" + ("" if averaged else ", not in the mean"),
        "accuracy": table.accuracy(run),
        "bits": run.bits,
        "megabytes": {name: size(run.records) / 1e6 for name, size in sizes.items()},
        "settings": {text(name): value_text(value) for name, value in run.settings.items()},
        "versions": run.versions,
        "files": {name: address for name, address in links.items() if address},
        "columns": columns(run),
    }
