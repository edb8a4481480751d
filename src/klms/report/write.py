"""The report as files: the page, and each figure as CSV, PNG and SVG."""

import csv
from collections.abc import Callable
from pathlib import Path

from klms.report import page
from klms.report.document import Report, as_json
from klms.report.figures import Figure

FIGURES = "figures"


def write(report: Report, out: Path) -> bool:
    """Write all; False if there are no pictures, as matplotlib is not installed."""
    draw = _painter()
    folder = out / FIGURES
    folder.mkdir(parents=True, exist_ok=True)
    for section in report.sections:
        for figure in section.figures:
            path = folder / f"{section.task.slug}-{figure.id}"
            write_csv(figure, path.with_name(path.name + ".csv"))
            if draw is not None:
                draw(figure, section.task.title, path)
    endings = ("png", "svg", "csv") if draw is not None else ("csv",)
    (out / "index.html").write_text(page.render(as_json(report, files=endings)), encoding="utf-8")
    return draw is not None


def _painter() -> Callable[[Figure, str, Path], None] | None:
    try:
        from klms.report.pictures import draw
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return None
    return draw


def write_csv(figure: Figure, path: Path) -> None:
    """A figure's numbers, for a spreadsheet."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for line in figure.table():
            writer.writerow([_harmless(value) for value in line])


def _harmless(value: object) -> object:
    """A name that a spreadsheet would take for a formula is written as text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
