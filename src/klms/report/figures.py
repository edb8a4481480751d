"""Figures as plain numbers, from which the scripts in `assets/` draw and the CSV files are written."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from klms.report.groups import Style
from klms.report.tracks import AXES, Track

Line = tuple[object, ...]


@dataclass(frozen=True)
class Axis:
    """The quantity along an axis."""

    label: str
    log: bool = False


@dataclass(frozen=True)
class Point:
    """A mean over seeds, and its standard deviation if there is more than one seed."""

    x: tuple[float | None, ...]
    """A number for each axis of its figure; None if the runs did not record it."""
    y: float
    deviation: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of one row of the table."""

    row: str
    style: Style
    points: tuple[Point, ...]
    paper: bool = False
    """Whether the paper reports them, as opposed to a run."""


@dataclass(frozen=True)
class Figure(ABC):
    """Base class of all kinds of figures."""

    id: str
    title: str
    caption: str

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    def drawn(self) -> dict[str, object]:
        """What the page's script draws from."""
        return {"kind": self.kind, **asdict(self)}

    @abstractmethod
    def table(self) -> Iterator[Line]:
        """The rows of the CSV file, starting with the header."""


@dataclass(frozen=True)
class Measure:
    """A column of the tracks that a figure shows, and what it is called where the figure shows several."""

    column: str
    label: str


@dataclass(frozen=True)
class Curves(Figure):
    """Columns of the tracks, against any of the axes and for runs or means over them, as the reader chooses."""

    y: Axis
    measures: tuple[Measure, ...]
    tracks: tuple[Track, ...] = ()

    def drawn(self) -> dict[str, object]:
        return Figure.drawn(replace(self, tracks=()))  # the page has the tracks once, with its runs

    def table(self) -> Iterator[Line]:
        axes = [name for name in AXES if any(name in track.columns for track in self.tracks)]
        names = [*axes, *(measure.column for measure in self.measures)]
        yield ("run", "series", "seed", *(AXES[name] for name in axes), *(measure.label for measure in self.measures))
        for track in self.tracks:
            empty = (None,) * len(track.columns["round"])
            lines = zip(*(track.columns.get(name, empty) for name in names), strict=True)
            measured = (line for line in lines if any(number is not None for number in line[len(axes) :]))
            yield from ((track.run, track.row, track.seed, *line) for line in measured)


@dataclass(frozen=True)
class Points(Figure):
    """One point per row of the table and the paper's points, against one of several axes."""

    x: tuple[Axis, ...]
    y: Axis
    series: tuple[Series, ...]

    def table(self) -> Iterator[Line]:
        yield ("series", *(axis.label for axis in self.x), self.y.label, "deviation")
        for one in self.series:
            name = f"paper: {one.row}" if one.paper else one.row
            yield from ((name, *point.x, point.y, point.deviation) for point in one.points)


@dataclass(frozen=True)
class Panel:
    """One number per row and column; in bars, a row is a category and a column a part of its stack."""

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Heat(Figure):
    """Numbers as colours, shown one panel at a time."""

    x: Axis
    unit: str
    panels: tuple[Panel, ...]

    def table(self) -> Iterator[Line]:
        yield ("panel", "row", self.x.label, self.unit)
        for panel in self.panels:
            for name, values in zip(panel.rows, panel.values, strict=True):
                for column, value in zip(panel.columns, values, strict=True):
                    yield (panel.name, name, column, value)


@dataclass(frozen=True)
class StepPanel:
    """Pieces of an axis, each with a height; the last entry of `starts` is the end of the last piece."""

    name: str
    style: Style
    starts: tuple[int, ...]
    heights: tuple[float, ...]
    marks: tuple[tuple[int, str], ...] = ()
    """Where layers begin."""


@dataclass(frozen=True)
class Steps(Figure):
    """A piecewise constant function, shown one panel at a time."""

    x: Axis
    y: Axis
    panels: tuple[StepPanel, ...]

    def table(self) -> Iterator[Line]:
        yield ("panel", "start", "end", self.y.label)
        for panel in self.panels:
            for piece in zip(panel.starts, panel.starts[1:], panel.heights, strict=False):
                yield (panel.name, *piece)


@dataclass(frozen=True)
class Bars(Figure):
    """Stacked bars, shown one panel at a time."""

    axis: Axis
    """The quantity that the lengths of the bars show."""
    categories: str
    panels: tuple[Panel, ...]
    """All have the same parts."""
    horizontal: bool

    def table(self) -> Iterator[Line]:
        yield ("panel", self.categories, *self.panels[0].columns)
        for panel in self.panels:
            for category, values in zip(panel.rows, panel.values, strict=True):
                yield (panel.name, category, *values)
