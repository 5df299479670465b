"""Figures as values, drawn on the page by JavaScript and for a paper by matplotlib."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ChartPoint:
    """A point of a line or the end of a bar, with its standard deviation if known."""

    x: float  # for bars, the index of the category
    y: float
    spread: float | None = None


@dataclass(frozen=True)
class Series:
    """The points of a method, by x."""

    method: str
    points: tuple[ChartPoint, ...]
    finished: bool = True  # whether all its runs are


@dataclass(frozen=True)
class Chart:
    """A figure with lines, or with bars if there are categories."""

    section: str
    title: str
    protocol: str
    x: str  # the titles of the axes
    y: str
    series: tuple[Series, ...]  # one per method
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeatMap:
    """The mean accuracy of a method on each task (column) after each task (row), in percent.

    Row i has the i + 1 tasks learned so far.
    """

    method: str
    protocol: str
    values: tuple[tuple[float | None, ...], ...]
    count: int  # of runs
    finished: bool
