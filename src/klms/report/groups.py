"""Which runs belong together: tasks are compared within one table, and the runs of a row differ only in their seeds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, cycle

from klms.methods.table import METHODS
from klms.report.collect import Remark, Run, text

TASK = ("data", "images", "split", "c_max", "alpha", "clients", "per_round", "model", "width")
APART = {"method", "seed", "data_dir", "device", "evaluate_every", "layer_kl"}
"""Settings that do not make a row of their own: its name, its seeds, and what does not change the learning."""
HUES, SHADES = 13, 3
"""Numbers of colours, and of shades of each, in `assets/page.css`."""


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
class Group:
    """A row: one method with one choice of settings, over seeds."""

    method: str
    title: str
    """Name of the row in its experiment; for runs of no experiment, the method."""
    settings: str
    """All settings that differ from other rows with the same title."""
    label: str
    """The fewest of those settings that tell the rows apart."""
    style: Style
    runs: list[Run]
    """Runs that the means are taken over: the finished ones, or all if none is finished."""
    unfinished: list[Run]
    """Runs that are not in the means because others are finished."""

    @property
    def name(self) -> str:
        return f"{self.title} ({self.label})" if self.label else self.title

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)


@dataclass(frozen=True)
class Task:
    """Runs with the same data, split and model, which can be compared."""

    slug: str
    title: str
    subtitle: str
    config: dict[str, object]
    groups: list[Group]


def tasks(runs: Sequence[Run]) -> tuple[list[Task], list[Remark]]:
    """Sort runs into tasks and rows; of several runs with the same settings and seed, only the longest is kept."""
    repeated: list[Remark] = []
    by_task: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        by_task.setdefault(tuple(value_text(_relevant(run).get(name)) for name in TASK), []).append(run)
    made: list[Task] = []
    for members in by_task.values():
        config = _relevant(members[0])
        slug = _slug([config.get("data"), config.get("split"), config.get("model")], {task.slug for task in made})
        made.append(Task(slug, *_titles(config), config, _groups(members, repeated)))
    return made, repeated


def _relevant(run: Run) -> dict[str, object]:
    """The settings that make the task, without those that its kind of split does not use."""
    settings = {name: run.settings[name] for name in TASK if name in run.settings}
    for name, split in (("c_max", "noniid"), ("alpha", "dirichlet")):
        if settings.get("split") != split:
            settings.pop(name, None)
    if not settings.get("per_round"):
        settings["per_round"] = settings.get("clients")
    return settings


def _groups(runs: list[Run], repeated: list[Remark]) -> list[Group]:
    """The rows of a task; runs that are left out for a longer one are added to `repeated`."""
    methods = {run.method for run in runs}
    hues = _hues(methods)
    groups: list[Group] = []
    for method in [*METHODS, *sorted(methods - METHODS.keys())]:
        of_method = [run for run in runs if run.method == method]
        rows = [row for title in sorted({run.title for run in of_method}) for row in _rows(of_method, title, repeated)]
        for index, (title, settings, label, members) in enumerate(rows):
            finished = [run for run in members if run.finished]
            rest = [run for run in members if not run.finished] if finished else []
            style = _style(method, index, hues[method])
            groups.append(Group(method, title, settings, label, style, finished or members, rest))
    return groups


def _rows(of_method: list[Run], title: str, repeated: list[Remark]) -> Iterator[tuple[str, str, str, list[Run]]]:
    """The rows with a title: the settings that differ between them, the fewest that tell them apart, and their runs."""
    runs = [run for run in of_method if run.title == title]
    differing = _differing(runs)
    needed = _telling(runs, differing)
    rows: dict[tuple[str, str], dict[str, Run]] = {}
    for run in runs:
        seeds = rows.setdefault((_listed(run, differing), _listed(run, needed)), {})
        if (other := seeds.setdefault(run.seed, run)) is not run:
            less, more = sorted((run, other), key=lambda r: len(r.records))
            repeated.append(Remark(less.name, f"it has the same settings and seed as {more.name}"))
            seeds[run.seed] = more
    for (settings, label), seeds in sorted(rows.items()):
        yield title, settings, label, [seeds[seed] for seed in sorted(seeds, key=lambda seed: (len(seed), seed))]


def _hues(methods: set[str]) -> dict[str, int]:
    """One hue per family of known methods; unknown methods take the hues that are left."""
    families = list(dict.fromkeys(entry.family for entry in METHODS.values()))
    hues = {name: families.index(METHODS[name].family) % HUES for name in methods if name in METHODS}
    left = [hue for hue in range(HUES) if hue not in hues.values()] or list(range(HUES))
    return hues | dict(zip(sorted(methods - METHODS.keys()), cycle(left), strict=False))


def _style(method: str, index: int, hue: int) -> Style:
    """The style of row `index` of a method."""
    again = index // SHADES  # shades tell the rows of a method apart; when they are used up, dashes do
    if _is_ours(method):
        return Style(hue, index % SHADES, hue + index, again % 4, hollow=False)
    position = 2
    if method in METHODS:
        family = METHODS[method].family
        position = [m.name for m in METHODS.values() if m.family == family and not _is_ours(m.name)].index(method)
    return Style(hue, index % SHADES, hue + index, 1 + (position + again) % 3, hollow=True)


def _is_ours(method: str) -> bool:
    return method == "trellis" or "klms" in method.split("-")


def _differing(runs: list[Run]) -> list[str]:
    """Settings with more than one value; a run that lacks a setting counts for no value of it."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in APART.union(TASK))
    return [name for name in names if len({value_text(run.settings[name]) for run in runs if name in run.settings}) > 1]


def _telling(runs: list[Run], differing: list[str]) -> list[str]:
    """A few of `differing` that tell the rows apart as well as all of them do, chosen greedily."""

    def rows(names: list[str]) -> int:
        return len({_listed(run, names) for run in runs})

    needed: list[str] = []
    while rows(needed) < rows(differing):
        needed.append(max(differing, key=lambda name: rows([*needed, name])))
    return needed


def _listed(run: Run, names: list[str]) -> str:
    return ", ".join(f"{name} {value_text(run.settings[name])}" for name in names if name in run.settings)


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
    """A setting as the report shows it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else text("" if value is None else value)


def _slug(parts: Sequence[object], taken: set[str]) -> str:
    """A file name of ASCII letters, digits and hyphens, whatever the settings hold."""
    joined = "-".join(value_text(part) for part in parts if part is not None).lower()
    clean = "".join(c if c.isascii() and c.isalnum() else "-" for c in joined).strip("-")[:60] or "runs"
    return next(slug for slug in chain([clean], (f"{clean}-{n}" for n in count(2))) if slug not in taken)
