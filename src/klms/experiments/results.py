"""The committed results: JSON files in `results/`, and the documents that are made from them alone.

`docs/results.md` is a template with a placeholder for every results file; the README has one table between two marks.
"""

import json
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from klms import files
from klms.benchmarks import mean
from klms.errors import InvalidArgument
from klms.experiments import both_ways, coding_share, fewest_bits, tables, toy
from klms.experiments.toy import TOYS

FIGURES = Path("docs/figures")
LARGEST = 1 << 24
"""Bytes of the largest results file that is read; the largest that is committed has a tenth of a megabyte."""
_README = re.compile(r"(<!-- results -->\n).*(<!-- /results -->)", re.DOTALL)

Show = Callable[[dict[str, Any]], str]
_SPECIAL: dict[str, Show] = {
    "adaptive-vs-fixed": tables.block_policies,
    "kl-by-layer": tables.layers,
    "coding-share": coding_share.markdown,
    "mean": mean.markdown,
    "both-ways": both_ways.markdown,
    "flower-quickstart": tables.flower,
    "flower-overhead": tables.flower_overhead,
    **dict.fromkeys(TOYS, toy.markdown),
}
_MEASURED = ("mean", "coding-share", "flower-quickstart", "flower-overhead")


def file_name(name: str) -> str:
    """Return the name of a results file; experiments that train are committed with the profile `small`."""
    return f"{name}.json" if name in (*TOYS, *_MEASURED) else f"{name}-small.json"


def document(folder: Path | str) -> str:
    """Return the text of `docs/results.md`."""
    template = resources.files("klms.experiments").joinpath("results.template.md").read_text()

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "ratios":
            return tables.claims(_mnist(folder))
        if name == "fewest-bits":
            return fewest_bits.markdown(_fewest_bits(folder))
        if not (Path(folder) / file_name(name)).exists():
            return f"Not run yet: `klms experiment run {name}`."
        return _SPECIAL.get(name, tables.markdown)(_read(folder, name))

    return re.sub(r"<<([a-z0-9-]+)>>", fill, template)


def readme(folder: Path | str, text: str) -> str:
    """Return the README with a new table."""
    rows = _mnist(folder)
    lines = []
    for name in (name for claim in tables.CLAIMS for name in (claim.without, claim.with_klms)):
        bits, _ = tables.mean_and_deviation(rows[name], "bits_per_parameter")
        accuracy, spread = tables.mean_and_deviation(rows[name], "accuracy")
        lines.append((name, f"{accuracy:.3f} ± {spread:.3f}", f"{bits:.4f}", f"{32 / bits:,.0f}"))
    if not _README.search(text):
        raise InvalidArgument("the README has no <!-- results --> and <!-- /results --> marks for its table")
    table = tables.table(("method", "accuracy", "bits per parameter up", "x smaller than float32 up"), lines)
    return _README.sub(lambda match: f"{match.group(1)}{table}\n{match.group(2)}", text)


def write_json(path: Path | str, results: object) -> Path:
    """Write a results file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    return path


def draw(folder: Path | str, figures: Path | str) -> None:
    """Draw the pictures that the documents show."""
    figures = Path(figures)
    figures.mkdir(parents=True, exist_ok=True)
    for name in TOYS:
        toy.draw(_read(folder, name), figures / f"{name}.png")
    both_ways.draw(_read(folder, "both-ways"), figures / "both-ways.png")
    fewest_bits.draw(_fewest_bits(folder), figures / "fewest-bits.png")
    measured = _read(folder, "mean")
    mean.draw([mean.Row(**row) for row in measured["rows"]], measured["clients"], figures / "mean.png")


def _read(folder: Path | str, name: str) -> Any:
    return json.loads(files.read(Path(folder) / file_name(name), LARGEST))


def _fewest_bits(folder: Path | str) -> dict[str, Any]:
    return {name: _read(folder, name) for name in ("fewest-bits", "table1", "table2")}


def _mnist(folder: Path | str) -> dict[str, Any]:
    return {**_read(folder, "table1")["data"]["mnist"], **_read(folder, "sgld-vs-qlsd")["data"]["mnist"]}
