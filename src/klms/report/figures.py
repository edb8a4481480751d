"""Figures as plain numbers, from which the scripts in `assets/` draw and the CSV files are written."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass

Line = tuple[object, ...]
"""A line of a CSV file."""


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
class Axis:
    """The quantity along an axis."""

    label: str
    log: bool = False


@dataclass(frozen=True)
class Figure(ABC):
    """Base class of all kinds of figures."""

    id: str
    title: str
    caption: str

    def drawn(self) -> dict[str, object]:
        """Return what the page's script draws from."""
        return {"kind": type(self).__name__.lower(), **asdict(self)}

    @abstractmethod
    def table(self) -> Iterator[Line]:
        """Yield the lines of the CSV file, starting with the header."""


@dataclass(frozen=True)
class Point:
    """What one row reached: a mean over seeds, and its standard deviation if there is more than one seed."""

    row: str
    style: Style
    x: tuple[float | None, ...]
    """A number for each axis of its figure; None if it is unknown."""
    y: float
    deviation: float | None = None
    paper: bool = False
    """Whether the paper reports it, as opposed to a run."""


@dataclass(frozen=True)
class Points(Figure):
    """One point per row of the table and the paper's points, against one of several axes."""

    x: tuple[Axis, ...]
    y: Axis
    points: tuple[Point, ...]

    def table(self) -> Iterator[Line]:
        yield ("series", *(axis.label for axis in self.x), self.y.label, "deviation")
        for point in self.points:
            yield (f"paper: {point.row}" if point.paper else point.row, *point.x, point.y, point.deviation)


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
