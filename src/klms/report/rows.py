"""Groups of runs: the runs of a task are compared in one table, and the runs of a row differ only in their seeds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

from klms.methods.table import METHODS
from klms.report.collect import Remark, ReportedRun, text
from klms.report.colours import HUES, SHADES

TASK = ("data", "images", "split", "c_max", "alpha", "clients", "per_round", "model", "width")
APART = {"method", "seed", "data_dir", "device", "evaluate_every", "layer_kl"}
"""Settings that do not tell rows apart: the method, the seed, and settings that do not affect learning."""


@dataclass(frozen=True)
class Style:
    """How a row is drawn: a family of methods shares a hue, and methods without KLMS have hollow markers."""

    hue: int
    shade: int
    shape: int
    dashes: int
    """Number of the dash pattern; 0 is a solid line."""
    hollow: bool


@dataclass(frozen=True)
class Row:
    """One method with one choice of settings, over seeds."""

    method: str
    title: str
    """Name of the row in its experiment; the method for runs of no experiment."""
    settings: str
    """The smallest set of settings that distinguishes the row from others with the same title."""
    style: Style
    all_runs: list[ReportedRun]

    @property
    def name(self) -> str:
        return f"{self.title} ({self.settings})" if self.settings else self.title

    @property
    def runs(self) -> list[ReportedRun]:
        """The runs over which means are taken: the finished runs, or all runs if no run is finished."""
        return [run for run in self.all_runs if run.finished] or self.all_runs


@dataclass(frozen=True)
class Task:
    """Runs that can be compared, because they have the same data, split and model."""

    slug: str
    title: str
    subtitle: str
    config: dict[str, object]
    rows: list[Row]


def tasks(runs: Sequence[ReportedRun]) -> tuple[list[Task], list[Remark]]:
    """Sort runs into tasks and rows; of several runs with the same settings and seed, only the longest is kept."""
    repeated: list[Remark] = []
    by_task: dict[tuple[str, ...], list[ReportedRun]] = {}
    for run in runs:
        config = _relevant(run)
        by_task.setdefault(tuple(value_text(config.get(name)) for name in TASK), []).append(run)
    made: dict[str, Task] = {}
    for members in by_task.values():
        config = _relevant(members[0])
        slug = _slug([config.get("data"), config.get("split"), config.get("model")], made)
        made[slug] = Task(slug, *_titles(config), config, list(_rows(members, repeated)))
    return list(made.values()), repeated


def _relevant(run: ReportedRun) -> dict[str, object]:
    """Return the settings that define the task, without settings that its kind of split does not use."""
    settings = {name: run.settings[name] for name in TASK if name in run.settings}
    for name, split in (("c_max", "noniid"), ("alpha", "dirichlet")):
        if settings.get("split") != split:
            settings.pop(name, None)
    if not settings.get("per_round"):
        settings["per_round"] = settings.get("clients")
    return settings


def _rows(runs: list[ReportedRun], repeated: list[Remark]) -> Iterator[Row]:
    """Yield the rows of a task, by method and title; runs left out in favour of a longer one go to `repeated`."""
    methods = {run.method for run in runs}
    ordered = [*(name for name in METHODS if name in methods), *sorted(methods - METHODS.keys())]
    for method, place in _places(ordered).items():
        index = 0
        for title in sorted({run.title for run in runs if run.method == method}):
            titled = [run for run in runs if (run.method, run.title) == (method, title)]
            for settings, members in _by_settings(titled):
                yield Row(method, title, settings, _style(method, index, place), _one_per_seed(members, repeated))
                index += 1


def _by_settings(runs: list[ReportedRun]) -> list[tuple[str, list[ReportedRun]]]:
    """Return, for each choice of settings, the few settings that distinguish it from other choices, and its runs."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in APART.union(TASK))
    differing = [name for name in names if len({_listed(run, [name]) for run in runs if name in run.settings}) > 1]

    def choices(names: list[str]) -> int:
        return len({_listed(run, names) for run in runs})

    telling: list[str] = []
    while choices(telling) < choices(differing):
        telling.append(max(differing, key=lambda name: choices([*telling, name])))
    found: dict[str, list[ReportedRun]] = {}
    for run in runs:
        found.setdefault(_listed(run, telling), []).append(run)
    return sorted(found.items())


def _listed(run: ReportedRun, names: list[str]) -> str:
    return ", ".join(f"{name} {value_text(run.settings[name])}" for name in names if name in run.settings)


def _one_per_seed(runs: list[ReportedRun], repeated: list[Remark]) -> list[ReportedRun]:
    seeds: dict[str, ReportedRun] = {}
    for run in runs:
        other = seeds.setdefault(run.seed, run)
        if other is not run:
            less, more = sorted((run, other), key=lambda one: len(one.records))
            repeated.append(Remark(less.name, f"it has the same settings and seed as {more.name}"))
            seeds[run.seed] = more
    return [seeds[seed] for seed in sorted(seeds, key=lambda seed: (len(seed), seed))]


def _places(methods: list[str]) -> dict[str, int]:
    """Return the place of each method among the colours: its family's, or an unused one for unknown methods.

    Places beyond the last colour use the colours again, in other shades.
    """
    families = list(dict.fromkeys(entry.family for entry in METHODS.values()))
    places = {name: families.index(METHODS[name].family) for name in methods if name in METHODS}
    taken = {place % HUES for place in places.values()}
    left = [hue for hue in range(HUES) if hue not in taken]
    others = [name for name in methods if name not in places]
    beyond = count(max(HUES, len(families)))
    return places | dict(zip(others, chain(left, beyond), strict=False))


def _style(method: str, index: int, place: int) -> Style:
    """Return the style of row `index` of a method: rows differ in shades, and in dashes once shades are used up."""
    hue = place % HUES
    shade = (index + place // HUES) % SHADES
    again = index // SHADES
    if _is_ours(method):
        return Style(hue, shade, hue + index, again % 4, hollow=False)
    position = 2
    if method in METHODS:
        family = METHODS[method].family
        position = [e.name for e in METHODS.values() if e.family == family and not _is_ours(e.name)].index(method)
    return Style(hue, shade, hue + index, 1 + (position + again) % 3, hollow=True)


def _is_ours(method: str) -> bool:
    return method == "trellis" or "klms" in method.split("-")


def _titles(config: dict[str, object]) -> tuple[str, str]:
    shown = {name: value_text(value) for name, value in config.items()}
    split = shown.get("split", "")
    title = f"{shown.get('data', '')}, {({'iid': 'i.i.d.', 'noniid': 'non-i.i.d.'}).get(split, split)}"
    if "c_max" in shown:
        title += f", at most {shown['c_max']} classes per client"
    if "alpha" in shown:
        title += f", alpha {shown['alpha']}"
    clients, per_round = shown.get("clients", ""), shown.get("per_round", "")
    part = f"{clients} clients" if clients == per_round else f"{per_round} of {clients} clients"
    model = shown.get("model", "") + (f" of width {shown['width']}" if config.get("width", 1.0) != 1.0 else "")
    images = config.get("images")
    size = f"{images:,} training examples" if isinstance(images, int) and images else "all training examples"
    return title, f"{model}, {part} per round, {size}"


def value_text(value: object) -> str:
    """Return a setting as the report shows it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else text("" if value is None else value)


def _slug(parts: Sequence[object], taken: dict[str, Task]) -> str:
    """Return a file name of ASCII letters, digits and hyphens, whatever the settings hold."""
    joined = "-".join(value_text(part) for part in parts if part is not None).lower()
    clean = "".join(c if c.isascii() and c.isalnum() else "-" for c in joined).strip("-")[:60] or "runs"
    return clean if clean not in taken else next(slug for n in count(2) if (slug := f"{clean}-{n}") not in taken)
