"""The report as files: the page, and the numbers of each figure as CSV."""

import csv
from pathlib import Path

from klms.report import page
from klms.report.document import Report, as_json
from klms.report.figures import Figure

FIGURES = "figures"


def write(report: Report, out: Path) -> None:
    """Write `index.html` and one CSV file per figure."""
    folder = out / FIGURES
    folder.mkdir(parents=True, exist_ok=True)
    for section in report.sections:
        for figure in section.figures:
            write_csv(figure, folder / f"{section.task.slug}-{figure.id}.csv")
    (out / "index.html").write_text(page.render(as_json(report, csv=True)), encoding="utf-8")


def write_csv(figure: Figure, path: Path) -> None:
    """Write the numbers of a figure for a spreadsheet."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([_harmless(value) for value in line] for line in figure.table())


def _harmless(value: object) -> object:
    """Mark a name that a spreadsheet would take for a formula as text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
