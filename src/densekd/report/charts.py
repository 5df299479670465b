"""Figures as values: what is drawn on the page and, for a paper, by matplotlib."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ChartPoint:
    """A point of a line or the end of a bar, with its standard deviation if there is one."""

    x: float
    y: float
    spread: float | None = None


@dataclass(frozen=True)
class Series:
    """A method's points.

    Args:
        method: which.
        points: by x; of bars, x is the place of the category.
        finished: whether all its runs are.
    """

    method: str
    points: tuple[ChartPoint, ...]
    finished: bool = True


@dataclass(frozen=True)
class Chart:
    """A figure with lines, or with bars if there are categories.

    Args:
        section: what it belongs to.
        title: what it shows.
        protocol: of what.
        x: what goes to the right.
        y: what goes up.
        series: one for each method.
        categories: what bars stand for; empty for lines.
    """

    section: str
    title: str
    protocol: str
    x: str
    y: str
    series: tuple[Series, ...]
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeatMap:
    """The accuracy on each task (column) after each step (row), in percent, of one method.

    Args:
        method: which.
        protocol: of what.
        values: a row for each step, with as many tasks as were learned.
        count: of how many runs it is the mean.
        finished: whether these are finished.
    """

    method: str
    protocol: str
    values: tuple[tuple[float | None, ...], ...]
    count: int
    finished: bool
