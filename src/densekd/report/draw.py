"""Figures for a paper, drawn by matplotlib as PDF and PNG."""

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from densekd.report.charts import Chart, HeatMap, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# By the index of the method; the page has the same.
_COLOURS = (
    *("#2f6db3", "#d1601c", "#2a8a55", "#b0307c", "#6f55c4"),
    *("#97780a", "#168797", "#c03a3a", "#66707f", "#86573a"),
)
_DASHES = ("-", "--", ":", "-.")
_MARKERS = "osD^vPX*<>"


def draw_figures(
    charts: Sequence[Chart | HeatMap],
    places: Mapping[str, int],
    endings: Sequence[str] = ("pdf", "png"),
) -> dict[str, bytes]:
    """Draw the figures of a protocol side by side; the bytes are the same each time.

    Args:
        charts: what to draw.
        places: the index of each method, which gives it the same colour in all figures.
        endings: the formats of the files.

    Returns:
        The content of the files, by ending.
    """
    # Imported here because it takes a second.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, len(charts))
    rows = -(-len(charts) // columns)
    maps = any(isinstance(chart, HeatMap) for chart in charts)
    size = (2.3 * columns + 0.7, 2.3 * rows + 0.4) if maps else (3.2 * columns, 2.4 * rows + 0.5)
    # Journals ask for fonts of type 42.
    with rc_context({"font.size": 8, "axes.titlesize": 8, "pdf.fonttype": 42}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
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
    """Add one legend for all panels, with as many methods in a row as have room."""
    known = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        known.update({label: h for h, label in zip(handles, labels, strict=True)})
    inches = 0.55 + 0.065 * max(map(len, known))  # the sample of a line, and a name of 8 points
    figure.legend(
        list(known.values()),
        list(known),
        loc="outside lower center",
        ncols=max(1, min(len(known), int(figure.get_figwidth() / inches))),
        frameon=False,
    )


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
    x, y = [p.x for p in series.points], [p.y for p in series.points]
    spread = [p.spread or 0.0 for p in series.points]
    colour = _COLOURS[place % len(_COLOURS)]
    dash = _DASHES[place // len(_COLOURS) % len(_DASHES)]
    marker = _MARKERS[place % len(_MARKERS)] if len(x) <= 30 else ""
    label = _label(series)
    axes.plot(x, y, dash, color=colour, marker=marker, markersize=3, linewidth=1.2, label=label)
    if any(spread):
        low = [a - b for a, b in zip(y, spread, strict=True)]
        high = [a + b for a, b in zip(y, spread, strict=True)]
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _bars(axes: "Axes", series: Series, place: int, number: int, count: int) -> None:
    width = 0.8 / count
    x = [p.x + (number - (count - 1) / 2) * width for p in series.points]
    spread = [p.spread or 0.0 for p in series.points]
    axes.bar(
        x,
        [p.y for p in series.points],
        0.9 * width,
        color=_COLOURS[place % len(_COLOURS)],
        yerr=spread if any(spread) else None,
        error_kw={"linewidth": 0.7, "capsize": 1.5},
        label=_label(series),
    )


def _draw_map(axes: "Axes", chart: HeatMap) -> None:
    size = len(chart.values)
    values = [[*row, *[None] * (size - len(row))] for row in chart.values]
    known = [[float("nan") if value is None else value for value in row] for row in values]
    axes.imshow(known, cmap="Blues", vmin=0, vmax=100)
    for row, column in itertools.product(range(size), repeat=2) if size <= 12 else ():
        if (value := values[row][column]) is not None:
            ink = "white" if value > 60 else "black"
            text = axes.text(column, row, f"{value:.0f}", color=ink, fontsize=6)
            text.set(ha="center", va="center")
    axes.set_title(_literal(chart.method) + ("" if chart.finished else " (unfinished)"))
    axes.set_xlabel("task")
    axes.set_ylabel("after task")
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks(_ticks(size), [str(tick + 1) for tick in _ticks(size)])
    axes.spines[:].set_visible(False)


def _ticks(size: int) -> range:
    return range(0, size, max(1, size // 10))


def _label(series: Series) -> str:
    return _literal(series.method) + ("" if series.finished else " (unfinished)")


def _literal(text: str) -> str:
    """A name without dollars that start a formula, or underscores that hide it in a legend."""
    return text.replace("$", r"\$").lstrip("_")
