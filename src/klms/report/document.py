"""All that a page shows, as one document: the same for the file and for the live page."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from klms.report import curves, panels, table
from klms.report.collect import Run, Skipped, collect
from klms.report.figures import Figure
from klms.report.groups import Task, tasks


@dataclass(frozen=True)
class Section:
    """A task with its table and figures."""

    task: Task
    table: table.Table
    figures: list[Figure]


@dataclass(frozen=True)
class Report:
    """Runs, put together."""

    sections: list[Section]
    skipped: list[Skipped]
    runs: int

    @property
    def going(self) -> bool:
        """Whether a run is not finished."""
        return any(group.waiting or not group.finished for section in self.sections for group in section.task.groups)


def make(places: Iterable[Path]) -> Report:
    """The report of all runs in `places`."""
    return arrange(*collect(places))


def arrange(runs: Sequence[Run], skipped: Sequence[Skipped] = ()) -> Report:
    """The report of runs that were read."""
    found, repeated = tasks(runs)
    sections = [Section(task, table.make(task), [*curves.make(task), *panels.make(task)]) for task in found]
    return Report(sections, [*skipped, *repeated], len(runs))


def as_json(report: Report, *, files: Sequence[str] = ()) -> dict[str, object]:
    """What the page's script reads; `files` are the endings of the files that lie beside each figure."""
    return {
        "runs": report.runs,
        "going": report.going,
        "skipped": [asdict(skipped) for skipped in report.skipped],
        "files": list(files),
        "tasks": [
            {
                "slug": section.task.slug,
                "title": section.task.title,
                "subtitle": section.task.subtitle,
                "table": asdict(section.table),
                "runs": _runs(section.task),
                "figures": [{"kind": figure.kind, **asdict(figure)} for figure in section.figures],
            }
            for section in report.sections
        ],
    }


def _runs(task: Task) -> list[dict[str, object]]:
    """Every run by itself: the means of the table must be checkable."""
    return [
        {
            "name": run.name,
            "group": group.name,
            "seed": run.seed,
            "rounds": f"{len(run.records)} of {run.rounds}",
            "accuracy": table.last(run, "accuracy"),
            "bits": table.bits_per_parameter(run),
        }
        for group in task.groups
        for run in group.runs
    ]
