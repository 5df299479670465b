"""Figures as values, drawn on the page by JavaScript and for a paper by matplotlib."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# By the index of the method; the page uses the same colours.
_COLOURS = (
    *("#2f6db3", "#d1601c", "#2a8a55", "#b0307c", "#6f55c4"),
    *("#97780a", "#168797", "#c03a3a", "#66707f", "#86573a"),
)
_DASHES = ("-", "--", ":", "-.")
_MARKERS = "osD^vPX*<>"


class ChartPoint(NamedTuple):
    """A point of a line or the end of a bar, with its standard deviation if known."""

    x: float  # for bars, the index of the category
    y: float
    spread: float | None = None


@dataclass(frozen=True)
class Series:
    """The points of a method, by x."""

    method: str
    points: tuple[ChartPoint, ...]
    finished: bool = True  # whether it shows finished runs


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

    @property
    def has_band(self) -> bool:
        """Whether a line has a band of standard deviations around it."""
        points = (point for series in self.series for point in series.points)
        return not self.categories and any(point.spread for point in points)


@dataclass(frozen=True)
class HeatMap:
    """The mean accuracy of a method on each task (column) after each task (row), in percent.

    Row i has the i + 1 tasks learned so far.
    """

    section: ClassVar[str] = "matrices"
    method: str
    protocol: str
    values: tuple[tuple[float | None, ...], ...]
    count: int  # of runs
    finished: bool


def draw_figures(
    charts: Sequence[Chart | HeatMap],
    places: Mapping[str, int],
    endings: Sequence[str] = ("pdf", "png"),
) -> dict[str, bytes]:
    """Draw the figures of a protocol side by side, and return a file for each ending.

    PDF and PNG files have the same bytes each time. ``places`` has the index of each method, which
    gives it the same colour in all figures.
    """
    # Imported here because it takes a second.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(3, len(charts))
    rows = -(-len(charts) // columns)
    maps = any(isinstance(chart, HeatMap) for chart in charts)
    size = (2.3 * columns + 0.7, 2.3 * rows + 0.4) if maps else (3.2 * columns, 2.4 * rows + 0.5)
    # Journals ask for fonts of type 42.
    with rc_context({"font.size": 8, "axes.titlesize": 8, "pdf.fonttype": 42}):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(_literal(charts[0].protocol), fontsize=6.5, color="0.35", wrap=True)
        panels = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
        for axes, chart in zip(panels, charts, strict=False):
            if isinstance(chart, HeatMap):
                _draw_map(axes, chart)
            else:
                _draw_chart(axes, chart, places)
        for axes in panels[len(charts) :]:
            axes.set_axis_off()
        if maps:
            figure.colorbar(panels[0].images[0], ax=panels, label="% of test images", shrink=0.8)
        else:
            _add_legend(figure, panels)
        # Lay out once for all files, because it takes as long as drawing.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        return {ending: _rendered(figure, ending) for ending in endings}


def _add_legend(figure: "Figure", panels: "Sequence[Axes]") -> None:
    """Add one legend for all panels, with as many methods in a row as fit."""
    known = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        known.update(dict(zip(labels, handles, strict=True)))
    inches = 0.55 + 0.065 * max(map(len, known))  # the line sample, and a name in 8 points
    columns = max(1, min(len(known), int(figure.get_figwidth() / inches)))
    style: dict[str, Any] = {"ncols": columns, "frameon": False}
    figure.legend(known.values(), known, loc="outside lower center", **style)


def _rendered(figure: "Figure", ending: str) -> bytes:
    stream = io.BytesIO()
    stamp = {"CreationDate": None} if ending == "pdf" else None
    figure.savefig(stream, format=ending, dpi=200, metadata=stamp)
    return stream.getvalue()


def _draw_chart(axes: "Axes", chart: Chart, places: Mapping[str, int]) -> None:
    axes.set_title(_literal(chart.title))
    for number, series in enumerate(chart.series):
        if chart.categories:
            _bars(axes, series, places[series.method], number, len(chart.series))
        else:
            _line(axes, series, places[series.method])
    if chart.categories:
        axes.set_xticks(range(len(chart.categories)), [_literal(c) for c in chart.categories])
        # Bars begin at zero, because readers compare their lengths.
        axes.set_ylim(min(0.0, *(p.y for series in chart.series for p in series.points)), None)
    elif all(point.x == int(point.x) for series in chart.series for point in series.points):
        axes.locator_params(axis="x", integer=True)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    axes.grid(axis="y", alpha=0.25, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _line(axes: "Axes", series: Series, place: int) -> None:
    x, y, spread = _coordinates(series)
    colour = _COLOURS[place % len(_COLOURS)]
    dash = _DASHES[place // len(_COLOURS) % len(_DASHES)]
    marker = _MARKERS[place % len(_MARKERS)] if len(x) <= 30 else ""
    label = _label(series)
    axes.plot(x, y, dash, color=colour, marker=marker, markersize=3, linewidth=1.2, label=label)
    if spread.any():
        axes.fill_between(x, y - spread, y + spread, color=colour, alpha=0.15, linewidth=0)


def _bars(axes: "Axes", series: Series, place: int, number: int, count: int) -> None:
    width = 0.8 / count
    x, y, spread = _coordinates(series)
    axes.bar(
        x + (number - (count - 1) / 2) * width,
        y,
        0.9 * width,
        color=_COLOURS[place % len(_COLOURS)],
        yerr=spread if spread.any() else None,
        error_kw={"linewidth": 0.7, "capsize": 1.5},
        label=_label(series),
    )


def _draw_map(axes: "Axes", chart: HeatMap) -> None:
    size = len(chart.values)
    known = np.full((size, size), np.nan)
    for place, values in enumerate(chart.values):
        known[place, : len(values)] = np.array(values, float)
    axes.imshow(known, cmap="Blues", vmin=0, vmax=100)
    for (row, column), value in np.ndenumerate(known) if size <= 12 else ():
        if not np.isnan(value):
            ink = "white" if value > 60 else "black"
            text = axes.text(column, row, f"{value:.0f}", color=ink, fontsize=6)
            text.set(ha="center", va="center")
    axes.set_title(_label(chart))
    axes.set_xlabel("task")
    axes.set_ylabel("after task")
    ticks = range(0, size, max(1, size // 10))
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks(ticks, [str(tick + 1) for tick in ticks])
    axes.spines[:].set_visible(False)


def _coordinates(series: Series) -> np.ndarray:
    """Three rows: x, y and spread."""
    points = [(point.x, point.y, point.spread or 0.0) for point in series.points]
    return np.reshape(points, (-1, 3)).T


def _label(shown: Series | HeatMap) -> str:
    return (_literal(shown.method) or "?") + ("" if shown.finished else " (unfinished)")


def _literal(text: str) -> str:
    """Escape dollars, which start a formula, and drop underscores that hide a name in legends."""
    return text.replace("$", r"\$").lstrip("_")
