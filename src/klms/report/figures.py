"""Figures as plain numbers: the page, the pictures and the CSV files are all made of these.

Each kind knows its rows as a spreadsheet. How it looks is the matter of `assets/` and `pictures.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from klms.report.groups import Style

Line = tuple[object, ...]


@dataclass(frozen=True)
class Axis:
    """What is measured along an axis."""

    label: str
    log: bool = False


@dataclass(frozen=True)
class Point:
    """A mean over seeds and its deviation, if there is one."""

    x: float
    y: float
    deviation: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of one colour with a name in the legend."""

    name: str
    style: Style
    points: tuple[Point, ...]
    paper: bool = False
    """Reported by the paper, not measured here."""


@dataclass(frozen=True)
class Figure(ABC):
    """What all kinds have."""

    kind: ClassVar[str]
    id: str
    title: str
    caption: str

    @abstractmethod
    def table(self) -> Iterator[Line]:
        """The rows of its CSV file, names first."""


@dataclass(frozen=True)
class Curves(Figure):
    """Points in the plane, joined by lines or not."""

    kind: ClassVar[str] = "curves"
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    joined: bool = True

    def table(self) -> Iterator[Line]:
        yield ("series", self.x.label, self.y.label, "deviation")
        for series in self.series:
            for point in series.points:
                yield (series.name, point.x, point.y, point.deviation)


@dataclass(frozen=True)
class HeatPanel:
    """A number for each row and column."""

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Heat(Figure):
    """Numbers as colours, a panel at a time."""

    kind: ClassVar[str] = "heat"
    x: Axis
    unit: str
    panels: tuple[HeatPanel, ...]

    def table(self) -> Iterator[Line]:
        yield ("panel", "row", self.x.label, self.unit)
        for panel in self.panels:
            for name, values in zip(panel.rows, panel.values, strict=True):
                for column, value in zip(panel.columns, values, strict=True):
                    yield (panel.name, name, column, value)


@dataclass(frozen=True)
class StepPanel:
    """Pieces of an axis, each with a height; `starts` has the end of the last one too."""

    name: str
    style: Style
    starts: tuple[int, ...]
    heights: tuple[float, ...]
    marks: tuple[tuple[int, str], ...] = ()
    """Where layers begin."""


@dataclass(frozen=True)
class Steps(Figure):
    """A function that is constant over pieces, a panel at a time."""

    kind: ClassVar[str] = "steps"
    x: Axis
    y: Axis
    panels: tuple[StepPanel, ...]

    def table(self) -> Iterator[Line]:
        yield ("panel", "start", "end", self.y.label)
        for panel in self.panels:
            for start, end, height in zip(panel.starts, panel.starts[1:], panel.heights, strict=False):
                yield (panel.name, start, end, height)


@dataclass(frozen=True)
class BarPanel:
    """A stack for each category."""

    name: str
    categories: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """Of each category, a number for each part."""


@dataclass(frozen=True)
class Bars(Figure):
    """Stacked bars, a panel at a time; lying where categories are words, standing where they are numbered."""

    kind: ClassVar[str] = "bars"
    axis: Axis
    """What the lengths are."""
    categories: str
    """What a bar stands for."""
    parts: tuple[str, ...]
    panels: tuple[BarPanel, ...]
    lying: bool

    def table(self) -> Iterator[Line]:
        yield ("panel", self.categories, *self.parts)
        for panel in self.panels:
            for category, values in zip(panel.categories, panel.values, strict=True):
                yield (panel.name, category, *values)
