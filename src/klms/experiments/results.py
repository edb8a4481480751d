"""The committed results: JSON files in `results/`, and the documents that are made from them alone.

`docs/results.md` is a template with a placeholder for every results file; the README has one table between two marks.
A part of the template between `<<begin PROFILE>>` and `<<end PROFILE>>` is left out unless that profile has results.
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
from klms.experiments import both_ways, catalogue, coding_share, fewest_bits, tables, toy
from klms.experiments.toy import TOYS

FIGURES = Path("docs/figures")
LARGEST = 1 << 24
"""Bytes of the largest results file that is read; the largest that is committed has a tenth of a megabyte."""
_SECTION = re.compile(r"<<begin ([a-z]+)>>\n(.*?)<<end \1>>\n\n", re.DOTALL)
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


def file_name(name: str, profile: str = "small") -> str:
    """Return the name of a results file; those of experiments that train say the profile."""
    return f"{name}.json" if name in (*TOYS, *_MEASURED) else f"{name}-{profile}.json"


def document(folder: Path | str) -> str:
    """Return the text of `docs/results.md`."""
    template = resources.files("klms.experiments").joinpath("results.template.md").read_text()

    def keep(match: re.Match[str]) -> str:
        profile, text = match.groups()
        return text if _having_results(Path(folder), profile) else ""

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "ratios":
            return tables.claims(_mnist(folder))
        if name == "fewest-bits":
            return fewest_bits.markdown(_fewest_bits(folder))
        if name.startswith("profile "):
            return _profile(Path(folder), name.removeprefix("profile "))
        if not (Path(folder) / file_name(name)).exists():
            return f"Not run yet: `klms experiment run {name}`."
        return _SPECIAL.get(name, tables.markdown)(_read(folder, name))

    return re.sub(r"<<([a-z0-9 -]+)>>", fill, _SECTION.sub(keep, template))


def _having_results(folder: Path, profile: str) -> list[str]:
    """Return the experiments that train and that have a results file for a profile."""
    trained = [name for name in catalogue.names() if name not in TOYS]
    return [name for name in trained if (folder / file_name(name, profile)).exists()]


def _profile(folder: Path, profile: str) -> str:
    """Return the results of all experiments with a profile other than `small`."""
    parts = []
    for name in _having_results(folder, profile):
        title = catalogue.load(name).title
        command = f"`klms experiment run {name} --profile {profile}`"
        parts.append(f"### {title}\n\n{command}\n\n{both_ways.by_data(_read(folder, name, profile))}")
    return "\n\n".join(parts)


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


def _read(folder: Path | str, name: str, profile: str = "small") -> Any:
    return json.loads(files.read(Path(folder) / file_name(name, profile), LARGEST))


def _fewest_bits(folder: Path | str) -> dict[str, Any]:
    return {name: _read(folder, name) for name in ("fewest-bits", "table1", "table2")}


def _mnist(folder: Path | str) -> dict[str, Any]:
    return {**_read(folder, "table1")["data"]["mnist"], **_read(folder, "sgld-vs-qlsd")["data"]["mnist"]}
