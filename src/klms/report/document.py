"""Everything that the page shows, as one document: the same for the written and for the live page."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from klms.engine import ledger
from klms.report import figures, table
from klms.report.collect import FILES, Remark, ReportedRun, collect, text
from klms.report.figures import Figure
from klms.report.rows import Task, tasks, value_text

Link = Callable[[Path], str]
"""Returns the address of a file of a run, as the page links to it; empty if the page does not link to the file."""


@dataclass(frozen=True)
class Section:
    """A task with its table and figures."""

    task: Task
    table: table.Table
    figures: list[Figure]

    @property
    def runs(self) -> list[ReportedRun]:
        return [run for row in self.task.rows for run in row.all_runs]


@dataclass(frozen=True)
class Report:
    """Tables and figures of all runs that were found."""

    sections: list[Section]
    left_out: list[Remark]
    incomplete: list[Remark]

    @property
    def runs(self) -> list[ReportedRun]:
        return [run for section in self.sections for run in section.runs]


def make(places: Sequence[Path | str]) -> Report:
    """Report on all runs in `places`."""
    found = collect(places)
    made, repeated = tasks(found.runs)
    sections = [Section(task, table.make(task), figures.make(task)) for task in made]
    gone = {remark.name for remark in repeated}
    return Report(sections, [*found.left_out, *repeated], [r for r in found.incomplete if r.name not in gone])


def as_json(report: Report, *, csv: bool = False, link: Link = lambda path: "") -> dict[str, object]:
    """Convert to the object that the page's script reads; `csv` says whether there are CSV files of the figures."""
    return {
        "runs": len(report.runs),
        "all_finished": all(run.finished for run in report.runs),
        "left_out": [asdict(remark) for remark in report.left_out],
        "incomplete": [asdict(remark) for remark in report.incomplete],
        "csv": csv,
        "tasks": [_task(section, link) for section in report.sections],
    }


def _task(section: Section, link: Link) -> dict[str, object]:
    task, columns = section.task, section.table.columns
    rows = [
        {
            "name": row.name,
            "method": row.method,
            "title": row.title,
            "settings": row.settings,
            "style": asdict(row.style),
            "cells": [asdict(column.cells[place]) for column in columns],
        }
        for place, row in enumerate(task.rows)
    ]
    heads = [{"name": column.name, "hint": column.hint} for column in columns]
    return {
        "slug": task.slug,
        "title": task.title,
        "subtitle": task.subtitle,
        "table": {"columns": heads, "rows": rows, "paper": section.table.paper},
        "axes": figures.axes(task),
        "runs": [
            _run(place, run, averaged=any(run is one for one in row.runs), link=link)
            for place, row in enumerate(task.rows)
            for run in row.all_runs
        ],
        "figures": [figure.drawn() for figure in section.figures],
    }


def _run(row: int, run: ReportedRun, *, averaged: bool, link: Link) -> dict[str, object]:
    """Return one run by itself, so that the means of the table can be checked and runs can be compared."""
    sizes = {"up": ledger.uplink_bytes, "down": ledger.downlink_bytes, "total": ledger.total_bytes}
    links = {name: link(run.folder / name) for name in FILES if (run.folder / name).is_file()}
    return {
        "name": run.name,
        "row": row,
        "averaged": averaged,
        "seed": run.seed,
        "rounds": f"{len(run.records)} of {run.rounds}" + ("" if averaged else ", not in the mean"),
        "accuracy": run.evaluated.accuracy,
        "bits": run.bits,
        "megabytes": {name: size(run.records) / 1e6 for name, size in sizes.items()},
        "settings": {text(name): value_text(value) for name, value in run.settings.items()},
        "versions": run.versions,
        "files": {name: address for name, address in links.items() if address},
        "columns": run.columns,
    }
