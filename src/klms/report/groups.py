"""Which runs belong together: tasks, which are compared within a table, and rows, which differ in their seeds only."""

from collections.abc import Sequence
from dataclasses import dataclass

from klms.report.collect import Run, Skipped, number, text

TASK = ("data", "images", "split", "c_max", "alpha", "clients", "per_round", "model", "width")
APART = {"method", "seed", "data_dir", "device", "evaluate_every", "layer_kl"}
"""Settings that make no row of their own: the row's name, its seeds, and what does not change the learning."""


@dataclass(frozen=True)
class Style:
    """How a row is drawn, on the page and in the pictures."""

    hue: int
    variant: int
    """Dashes: 0 is a whole line."""
    shape: int
    """Of the marker; `shape - hue` counts the rows of a method, which have shades of one colour."""
    hollow: bool
    """Methods without KLMS have hollow markers."""


@dataclass(frozen=True)
class Group:
    """A row: a method with settings, over seeds."""

    method: str
    settings: str
    """All that tells it from the other rows of its method."""
    label: str
    """As little of that as is needed to tell."""
    style: Style
    runs: list[Run]
    """Those that count: the finished ones, or, where none is, those under way."""
    waiting: int
    """Runs under way that do not count yet, as others are finished."""

    @property
    def name(self) -> str:
        """Method and settings, short enough for a legend."""
        return f"{self.method} ({self.label})" if self.label else self.method

    @property
    def finished(self) -> bool:
        """Whether these are final numbers."""
        return all(run.finished for run in self.runs)


@dataclass(frozen=True)
class Task:
    """The same data, split and model: what may be compared."""

    slug: str
    title: str
    subtitle: str
    config: dict[str, object]
    groups: list[Group]


HUES = 13
_FAMILIES = {
    "fedpm": (0, 1, True),
    "fedpm-klms": (0, 0, False),
    "qsgd": (1, 1, True),
    "qsgd-klms": (1, 0, False),
    "signsgd": (2, 1, True),
    "signsgd-stochastic": (2, 2, True),
    "signsgd-klms": (2, 0, False),
    "qlsd": (3, 1, True),
    "sgld": (3, 2, True),
    "sgld-klms": (3, 0, False),
    "eden": (4, 0, True),
    "drive": (5, 0, True),
    "terngrad": (6, 0, True),
    "marina": (7, 0, True),
    "fedmask": (8, 0, True),
    "dp-rec": (9, 0, True),
    "klms-rotated": (10, 0, False),
    "topk": (11, 0, True),
    "fedavg": (12, 0, True),
}
_ORDER = list(_FAMILIES)


def tasks(runs: Sequence[Run]) -> tuple[list[Task], list[Skipped]]:
    """The runs, ordered; a run that repeats another's settings and seed is left out, as it is no further seed."""
    skipped: list[Skipped] = []
    by_task: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        by_task.setdefault(tuple(_shown(_relevant(run).get(name)) for name in TASK), []).append(run)
    made: list[Task] = []
    for members in by_task.values():
        config = _relevant(members[0])
        groups, repeated = _groups(members)
        skipped += repeated
        title, subtitle = _titles(config)
        slug = _slug([config.get("data"), config.get("split"), config.get("model")], {task.slug for task in made})
        made.append(Task(slug, title, subtitle, config, groups))
    return made, skipped


def _relevant(run: Run) -> dict[str, object]:
    """The settings that make the task; those of another kind of split say nothing."""
    settings = {name: run.settings[name] for name in TASK if name in run.settings}
    for name, split in (("c_max", "noniid"), ("alpha", "dirichlet")):
        if settings.get("split") != split:
            settings.pop(name, None)
    if not settings.get("per_round"):
        settings["per_round"] = settings.get("clients")
    return settings


def _groups(runs: list[Run]) -> tuple[list[Group], list[Skipped]]:
    skipped: list[Skipped] = []
    methods: dict[str, list[Run]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    groups: list[Group] = []
    unknown = sorted(set(methods) - set(_ORDER))
    for method in sorted(methods, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)):
        hue, variant, hollow = _FAMILIES.get(method) or (3 + unknown.index(method) % (HUES - 3), 3, True)
        differing = _differing(methods[method])
        needed = _telling(methods[method], differing)
        rows: dict[tuple[str, str], dict[str, Run]] = {}
        for run in methods[method]:
            seeds = rows.setdefault((_listed(run, differing), _listed(run, needed)), {})
            other = seeds.get(run.seed)
            if other is not None:
                less, more = sorted((run, other), key=lambda r: len(r.records))
                skipped.append(Skipped(less.name, f"the same settings and seed as {more.name}"))
                run = more
            seeds[run.seed] = run
        for index, ((settings, label), seeds) in enumerate(sorted(rows.items())):
            members = [seeds[seed] for seed in sorted(seeds)]
            finished = [run for run in members if run.finished]
            style = Style(hue, (variant + index) % 4, hue + index, hollow)
            counted = finished or members
            groups.append(Group(method, settings, label, style, counted, len(members) - len(counted)))
    return groups, skipped


def _differing(runs: list[Run]) -> list[str]:
    """Settings with more than one value; one that an older version did not have differs from nothing."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            if name not in APART and name not in TASK:
                values.setdefault(name, set()).add(_shown(value))
    return [name for name, found in values.items() if len(found) > 1]


def _telling(runs: list[Run], differing: list[str]) -> list[str]:
    """Settings that tell the rows apart as well as all of `differing` do: the most telling first, until they do."""

    def rows(names: list[str]) -> int:
        return len({_listed(run, names) for run in runs})

    needed: list[str] = []
    while rows(needed) < rows(differing):
        needed.append(max(differing, key=lambda name: rows([*needed, name])))
    return needed


def _listed(run: Run, names: list[str]) -> str:
    return ", ".join(f"{name} {_shown(run.settings[name])}" for name in names if name in run.settings)


def _titles(config: dict[str, object]) -> tuple[str, str]:
    clients, per_round = config.get("clients"), config.get("per_round")
    split = {"iid": "i.i.d.", "noniid": "non-i.i.d."}.get(_shown(config.get("split")), _shown(config.get("split")))
    facts = [f"{_shown(config.get('data'))}, {split}"]
    if "c_max" in config:
        facts.append(f"at most {_shown(config['c_max'])} classes a client")
    if "alpha" in config:
        facts.append(f"alpha {_shown(config['alpha'])}")
    part = f"{_shown(clients)} clients" if clients == per_round else f"{_shown(per_round)} of {_shown(clients)} clients"
    images = int(number(config.get("images")) or 0)
    model = _shown(config.get("model"))
    if (width := config.get("width", 1.0)) != 1.0:
        model += f" of width {_shown(width)}"
    size = f"{images:,} training examples" if images else "all training examples"
    return ", ".join(facts), f"{model}, {part} a round, {size}"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else text("" if value is None else value)


def _slug(parts: Sequence[object], taken: set[str]) -> str:
    """A file name of letters and digits, whatever the settings hold."""
    joined = "-".join(_shown(part) for part in parts if part is not None).lower()
    clean = "".join(c if c.isascii() and c.isalnum() else "-" for c in joined).strip("-")[:60] or "runs"
    slug, count = clean, 1
    while slug in taken:
        count += 1
        slug = f"{clean}-{count}"
    return slug
