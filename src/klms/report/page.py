"""The report as files: a page that needs no other file and no network, and the numbers of each figure as CSV.

Two barriers keep a hostile name or setting from becoming script: the data is JSON that cannot end its element and that
the page shows as text only, and the page's Content-Security-Policy allows only the script whose hash it names.
"""

import base64
import csv
import hashlib
import json
import os
from collections.abc import Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from klms.report import colours
from klms.report.document import Report, as_json
from klms.report.figures import Figure

UPLOT = "vendor/uplot"
SCRIPTS: tuple[str, ...] = (f"{UPLOT}/uPlot.iife.min.js", "dom.js", "ticks.js", "tip.js", "selection.js", "means.js")
SCRIPTS += ("specs.js", "paths.js", "chart.js", "pointer.js", "chart_svg.js", "svg_file.js", "heat.js", "bars.js")
SCRIPTS += ("figure.js", "toolbar.js", "table.js", "settings.js", "theme.js", "live.js", "page.js")
STYLES = (f"{UPLOT}/uPlot.min.css", "page.css")
POLL_SECONDS = 3


def render(document: Mapping[str, object], *, live: bool = False) -> str:
    """Render the page as HTML. A live page polls `data.json`; any other page makes no request."""
    constants = f"const GREY = {colours.HUES - 1}; // the last hue; those before it are colours\n"
    script = "(() => {\n'use strict';\n" + constants + "\n".join(_asset(name) for name in SCRIPTS) + "})();\n"
    style = colours.as_css() + "\n".join(map(_asset, STYLES))
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)}; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    data = embed({**document, "poll": POLL_SECONDS if live else 0})
    parts = {"POLICY": policy, "STYLE": style, "SCRIPT": script, "DATA": data}
    head, *rest = _asset("page.html").split("{{")
    return head + "".join(parts[name] + after for name, _, after in (piece.partition("}}") for piece in rest))


def embed(value: object) -> str:
    """Encode as JSON that can stand in a script element: without `<`, `>` and `&`."""
    return encode(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def encode(value: object) -> str:
    """Encode as compact JSON in ASCII; NaN is an error."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _asset(name: str) -> str:
    return resources.files("klms.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def write(report: Report, out: Path | str) -> None:
    """Write `index.html` and one CSV file per figure."""
    out = Path(out)
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for section in report.sections:
        for figure in section.figures:
            write_csv(figure, folder / f"{section.task.slug}-{figure.id}.csv")
    document = as_json(report, csv=True, link=partial(_relative, out.resolve()))
    (out / "index.html").write_text(render(document), encoding="utf-8")


def _relative(out: Path, path: Path) -> str:
    """Return the address of a file as seen from the page; empty if the file and the page lie on different drives."""
    try:
        return quote(Path(os.path.relpath(path.resolve(), out)).as_posix())
    except ValueError:
        return ""


def write_csv(figure: Figure, path: Path) -> None:
    """Write the numbers of a figure for a spreadsheet."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([_harmless(value) for value in line] for line in figure.lines)


def _harmless(value: object) -> object:
    """Mark a name as text if a spreadsheet would mistake it for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
