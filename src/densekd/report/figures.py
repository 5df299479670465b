"""The figures that there are data for."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from densekd.report.charts import Chart, ChartPoint, HeatMap, Series
from densekd.report.events import mean_losses
from densekd.report.groups import Group, by_order, group_compressions
from densekd.report.runs import AVERAGE, CompressionRun, RunRecord
from densekd.report.statistics import Summary, group_by

_CURVES = {
    "accuracy": ("curves", "All classes seen"),
    "base_accuracy": ("curves", "The base task's classes"),
    "old_accuracy": ("stability", "Classes of earlier tasks"),
    "new_accuracy": ("stability", "The newest classes"),
}
_PERCENT = "% of test images"


def charts(groups: Sequence[Group]) -> Iterator[Chart]:
    """All line and bar charts of class-incremental runs."""
    for own in group_by(groups, lambda group: group.protocol).values():
        yield from _curves(own)
        yield from _old_new(own)
        yield from _orders(own)
        yield from _flatness(own)
        yield from _losses(own)
    yield from _memory(groups)


def heat_maps(groups: Sequence[Group]) -> Iterator[HeatMap]:
    """The accuracy matrix of each group, as the mean over its runs."""
    for group in groups:
        matrices = [[step["task_accuracies"] for step in run.steps] for run in group.shown]
        rows = [tuple(map(_mean, zip(*row, strict=True))) for row in zip(*matrices, strict=False)]
        if len(rows) > 1:
            label, done = group.protocol.label, bool(group.runs)
            yield HeatMap(group.method, label, tuple(rows), len(matrices), done)


def compression_charts(compressions: Sequence[CompressionRun]) -> Iterator[Chart]:
    """The students' losses by epoch."""
    found: dict[str, list[Series]] = {}
    for (protocol, method), runs in group_compressions(compressions):
        points = []
        for epochs in zip(*(run.result["epochs"] for run in runs), strict=False):
            losses = [epoch["loss"] for epoch in epochs]
            if None not in losses:
                points.append(_point(epochs[0]["epoch"], losses))
        if points:
            found.setdefault(protocol, []).append(Series(method, tuple(points)))
    for protocol, series in found.items():
        title = "The student's loss"
        yield Chart("compression", title, protocol, "epoch", "loss", tuple(series))


def _curves(groups: Sequence[Group]) -> Iterator[Chart]:
    for measure, (section, classes) in _CURVES.items():
        lines = {group: curve(group.shown, measure) for group in groups}
        if any(len(points) > 1 for points in lines.values()):
            yield from _chart(section, f"{classes}, after each task", lines, "classes seen")


def curve(runs: Sequence[RunRecord], measure: str) -> list[ChartPoint]:
    """A measure after each task, as the mean over runs."""
    points = []
    for steps in zip(*(run.steps for run in runs), strict=False):
        values = [step[measure] for step in steps if step.get(measure) is not None]
        if values:
            points.append(_point(steps[0]["classes_seen"], values, 100))
    return points


def _old_new(groups: Sequence[Group]) -> Iterator[Chart]:
    bars = {}
    for group in groups:
        ends = group.summary("old_accuracy"), group.summary("new_accuracy")
        bars[group] = [_bar(i, end) for i, end in enumerate(ends) if end is not None]
    title, categories = "Old and new classes after the last task", ("earlier tasks", "last task")
    yield from _chart("stability", title, bars, categories=categories)


def _orders(groups: Sequence[Group]) -> Iterator[Chart]:
    found = by_order(groups)
    bars = {
        group: [_bar(i, each) for i, each in enumerate(shared.values())]
        for group, shared in found.items()
    }
    for orders in list(found.values())[:1]:  # the same for all methods of a protocol
        names = tuple(f"order {order}" for order in orders)
        yield from _chart("orders", "Average accuracy by class order", bars, categories=names)


def _flatness(groups: Sequence[Group]) -> Iterator[Chart]:
    titles = {False: "Loss with noise on the weights", True: "Rise over the loss without noise"}
    for rise, title in titles.items():
        lines = {group: _flatness_points(group, rise) for group in groups}
        x = "\N{GREEK SMALL LETTER SIGMA} of the noise"
        yield from _chart("flatness", title, lines, x, "mean cross-entropy of training images")


def _flatness_points(group: Group, rise: bool) -> list[ChartPoint]:
    """The mean over all draws, by sigma, of the runs with the same sigmas as the first."""
    known = [run.flatness for run in group.runs if run.flatness is not None]
    alike = [each["losses"] for each in known if each["sigmas"] == known[0]["sigmas"]]
    points = []
    for place, sigma in enumerate(known[0]["sigmas"] if known else ()):
        values = [
            loss - (before if rise else 0)
            for losses in alike
            for loss, before in zip(losses[place], losses[0], strict=True)
            if loss is not None and before is not None
        ]
        if values:
            points.append(_point(sigma, values))
    return points


def _losses(groups: Sequence[Group]) -> Iterator[Chart]:
    losses = {group: mean_losses(group) for group in groups}
    for slot in dict.fromkeys(slot for curves in losses.values() for slot in curves):
        lines = {
            group: [ChartPoint(*point) for point in curves.get(slot, ())]
            for group, curves in losses.items()
        }
        yield from _chart("losses", f"Loss term: {slot}", lines, "epoch, over all tasks", "loss")


def _memory(groups: Sequence[Group]) -> Iterator[Chart]:
    """The average accuracy by exemplars per class, for protocols that differ only in these."""
    found: dict[str, dict[str, dict[int, Group]]] = {}
    for group in groups:
        size = group.all_runs[0].settings.get("memory.per_class")
        if size is not None and group.runs:
            label = replace(group.protocol, memory="").label
            found.setdefault(label, {}).setdefault(group.method, {})[size] = group
    for label, methods in found.items():
        lines = [Series(m, _by_memory(sizes)) for m, sizes in methods.items() if len(sizes) > 1]
        if lines:
            title, x = "Average accuracy by memory", "exemplars a class"
            yield Chart("memory", title, label, x, _PERCENT, tuple(lines))


def _by_memory(sizes: Mapping[int, Group]) -> tuple[ChartPoint, ...]:
    """The points of a method: over the replicates that all sizes share, or over all if none is."""
    values = {size: group.by_replicate(AVERAGE) for size, group in sorted(sizes.items())}
    every = [set(known) for known in values.values()]
    counted = set.intersection(*every) or set.union(*every)
    return tuple(
        _point(size, [value for replicate, value in known.items() if replicate in counted], 100)
        for size, known in values.items()
    )


def _chart(
    section: str,
    title: str,
    points: Mapping[Group, Sequence[ChartPoint]],
    x: str = "",
    y: str = _PERCENT,
    categories: tuple[str, ...] = (),
) -> Iterator[Chart]:
    """A chart of the groups of a protocol that have points, if one has."""
    series = [Series(g.method, tuple(p), bool(g.runs)) for g, p in points.items() if p]
    if series:
        label = next(iter(points)).protocol.label
        yield Chart(section, title, label, x, y, tuple(series), categories)


def _point(x: float, values: Sequence[float], scale: float = 1) -> ChartPoint:
    summary = Summary.of(scale * value for value in values)
    assert summary is not None
    return ChartPoint(x, summary.mean, summary.std)


def _bar(place: int, summary: Summary) -> ChartPoint:
    return ChartPoint(place, 100 * summary.mean, None if summary.std is None else 100 * summary.std)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return 100 * sum(known) / len(known) if known else None
