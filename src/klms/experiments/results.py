"""The committed results: JSON files in `results/`, and the documents that are made from them alone.

`docs/results.md` is made from a template with a placeholder for every results file, `docs/zoo.md` joins experiments and
a bench (`zoo.py`), and the README and `docs/peers.md` have tables between two marks. A part of the template between
`<<begin PROFILE>>` and `<<end PROFILE>>` is left out unless that profile has results.
"""

import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from klms.benchmarks.mean import Row
from klms.errors import InvalidArgument
from klms.experiments import catalogue, peers, pictures, results_file, tables
from klms.experiments import zoo as zoo_page
from klms.experiments.diloco import diloco
from klms.experiments.panel import panel
from klms.experiments.results_file import Entry, Results
from klms.experiments.toy import TOYS

FIGURES = Path("docs/figures")
_SECTION = re.compile(r"<<begin ([a-z]+)>>\n(.*?)<<end \1>>\n\n", re.DOTALL)
_MARKED = re.compile(r"(<!-- results -->\n).*(<!-- /results -->)", re.DOTALL)
_MEASURED: dict[str, Callable[[Any], str]] = {
    "coding-share": tables.coding,
    "link": tables.links,
    "mean": tables.mean_estimation,
    "panel": panel.markdown,
    "peers": peers.markdown,
    "diloco": diloco.markdown,
    "flower-quickstart": tables.flower,
    "flower-overhead": tables.flower_overhead,
    **dict.fromkeys(TOYS, tables.toy),
}
"""Results of measurements other than runs, with the functions that make their tables. Measurements have no profile."""
_TRAINED: dict[str, Callable[[Any], str]] = {
    "adaptive-vs-fixed": tables.block_policies,
    "kl-by-layer": tables.layers,
    "both-ways": tables.both_ways,
}
"""Experiments with a table of their own; the others have `tables.uplink`."""


def file_name(name: str, profile: str = "small") -> str:
    """Return the name of a results file, which includes the profile for experiments that train."""
    return f"{name}.json" if name in _MEASURED else f"{name}-{profile}.json"


def document(folder: Path | str) -> str:
    """Return the text of `docs/results.md`."""

    def keep(match: re.Match[str]) -> str:
        profile, text = match.groups()
        return text if _having_results(folder, profile) else ""

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "ratios":
            return tables.claims(_mnist(folder))
        if name == "fewest-bits":
            return tables.fewest_bits(_fewest_bits(folder))
        if name == "ablations":
            return panel.ablations(_read(folder, panel.NAME))
        if name.startswith("profile "):
            return _profile(folder, name.removeprefix("profile "))
        show = (_MEASURED | _TRAINED).get(name, tables.uplink)
        return show(_read(folder, name))

    template = resources.files("klms.experiments").joinpath("results.template.md").read_text()
    return re.sub(r"<<([a-z0-9 -]+)>>", fill, _SECTION.sub(keep, template))


def _having_results(folder: Path | str, profile: str) -> list[str]:
    """Return the experiments that train and that have a results file for a profile."""
    return [name for name in catalogue.TRAINED if (Path(folder) / file_name(name, profile)).exists()]


def _profile(folder: Path | str, profile: str) -> str:
    """Return the results of all experiments with a profile other than `small`."""
    parts = []
    for name in _having_results(folder, profile):
        title = catalogue.load(name).title
        command = f"`klms experiment run {name} --profile {profile}`"
        parts.append(f"### {title}\n\n{command}\n\n{tables.both_ways_by_data(_read(folder, name, profile))}")
    return "\n\n".join(parts)


def readme(folder: Path | str, text: str) -> str:
    """Return the README with a new table for every data set of table 1."""
    return _with_table(text, tables.both_ways_by_data(_read(folder, "table1", "cpu")))


def peers_page(folder: Path | str, text: str) -> str:
    """Return `docs/peers.md` with new tables."""
    return _with_table(text, peers.markdown(_read(folder, peers.NAME)))


def _with_table(text: str, table: str) -> str:
    if not _MARKED.search(text):
        raise InvalidArgument("the document has no <!-- results --> and <!-- /results --> marks for its table")
    return _MARKED.sub(lambda match: f"{match.group(1)}{table}\n{match.group(2)}", text)


def zoo(folder: Path | str) -> str:
    """Return the text of `docs/zoo.md`."""
    trained = {source: _read(folder, source.experiment, source.profile) for source in zoo_page.SOURCES}
    measured = _read(folder, "mean")
    return zoo_page.document(trained, [Row(**row) for row in measured["rows"]], measured["clients"])


def draw(folder: Path | str, figures: Path | str) -> None:
    """Draw the pictures that the documents show."""
    figures = Path(figures)
    figures.mkdir(parents=True, exist_ok=True)
    for name in TOYS:
        pictures.toy(_read(folder, name), figures / f"{name}.png")
    pictures.both_ways(_read(folder, "table1", "cpu"), figures / "both-ways.png")
    pictures.fewest_bits(_fewest_bits(folder), figures / "fewest-bits.png")
    measured = _read(folder, "mean")
    rows = [Row(**row) for row in measured["rows"]]
    pictures.mean_estimation(rows, measured["clients"], figures / "mean.png")
    peers.draw(_read(folder, peers.NAME), figures / "peers.png")
    pictures.diloco(_read(folder, diloco.NAME), figures / "diloco.png")
    totals = {
        "6,000 images, 25 rounds": _read(folder, "both-ways"),
        "all images, 20 rounds": _read(folder, "table1", "cpu"),
    }
    pictures.accuracy_against_bytes(totals, figures / "accuracy-bytes.png")
    pictures.over_rounds(_read(folder, "panel")["runs"], figures / "rounds.png")


def _read(folder: Path | str, name: str, profile: str = "small") -> Any:
    found = results_file.read_json(Path(folder) / file_name(name, profile))
    return found if name in _MEASURED else found["data"]


def _fewest_bits(folder: Path | str) -> dict[str, Results]:
    return {name: _read(folder, name) for name in ("fewest-bits", "table1", "table2")}


def _mnist(folder: Path | str) -> dict[str, Entry]:
    return {**_read(folder, "table1")["mnist"], **_read(folder, "sgld-vs-qlsd")["mnist"]}
