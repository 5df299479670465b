"""The figures that there are data for."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from densekd.report.charts import Chart, ChartPoint, HeatMap, Series
from densekd.report.groups import Group
from densekd.report.labels import Protocol
from densekd.report.overview import by_order, group_compressions, in_several_orders
from densekd.report.runs import AVERAGE, CompressionRun, RunRecord
from densekd.report.statistics import Summary

Losses = Mapping[Group, Mapping[str, Sequence[tuple[int, float]]]]

_CURVES = {
    "accuracy": ("curves", "All classes seen"),
    "base_accuracy": ("curves", "The base task's classes"),
    "old_accuracy": ("stability", "Classes of earlier tasks"),
    "new_accuracy": ("stability", "The newest classes"),
}
_PERCENT = "% of test images"


def charts(groups: Sequence[Group], losses: Losses) -> list[Chart]:
    """All line and bar charts of class-incremental runs."""
    found: list[Chart] = []
    for protocol, members in _by_protocol(groups):
        found += _curves(protocol, members)
        found += _old_new(protocol, members)
        found += _orders(protocol, members)
        found += _flatness(protocol, members)
        found += _losses(protocol, members, losses)
    return [*found, *_memory(groups)]


def heat_maps(groups: Sequence[Group]) -> list[HeatMap]:
    """The accuracy matrix of each group, as the mean over its runs."""
    maps = []
    for group in groups:
        matrices = [[step["task_accuracies"] for step in run.steps] for run in group.shown]
        rows = [tuple(map(_mean, zip(*row, strict=True))) for row in zip(*matrices, strict=False)]
        if len(rows) > 1:
            label, done = group.protocol.label, bool(group.runs)
            maps.append(HeatMap(group.method, label, tuple(rows), len(matrices), done))
    return maps


def compression_charts(compressions: Sequence[CompressionRun]) -> list[Chart]:
    """The students' losses by epoch."""
    found: dict[str, list[Series]] = {}
    for (protocol, method), members in sorted(group_compressions(compressions).items()):
        rows = [[(e["epoch"], e["loss"]) for e in each.result["epochs"]] for each in members]
        points = [
            _point(column[0][0], [loss for _, loss in column], 1)
            for column in zip(*rows, strict=False)
            if all(loss is not None for _, loss in column)
        ]
        if points:
            found.setdefault(protocol, []).append(Series(method, tuple(points)))
    title = "The student's loss"
    return [
        Chart("compression", title, protocol, "epoch", "loss", tuple(series))
        for protocol, series in found.items()
    ]


def _curves(protocol: Protocol, groups: Sequence[Group]) -> Iterable[Chart]:
    for measure, (section, classes) in _CURVES.items():
        series = [s for group in groups if (s := curve(group.method, group.shown, measure)).points]
        title, label = f"{classes}, after each task", protocol.label
        if any(len(each.points) > 1 for each in series):
            yield Chart(section, title, label, "classes seen", _PERCENT, tuple(series))


def curve(label: str, runs: Sequence[RunRecord], measure: str) -> Series:
    """A measure of each step, as the mean over runs."""
    points = []
    for steps in zip(*(run.steps for run in runs), strict=False):
        values = [step[measure] for step in steps if step.get(measure) is not None]
        if values:
            points.append(_point(steps[0]["classes_seen"], values, 100))
    return Series(label, tuple(points), all(run.result is not None for run in runs))


def _old_new(protocol: Protocol, groups: Sequence[Group]) -> Iterable[Chart]:
    series = []
    for group in groups:
        ends = [group.summary(name) for name in ("old_accuracy", "new_accuracy")]
        bars = [_bar(i, end) for i, end in enumerate(ends) if end is not None]
        if bars:
            series.append(Series(group.method, tuple(bars)))
    if series:
        categories = ("earlier tasks", "last task")
        title, label = "Old and new classes after the last task", protocol.label
        yield Chart("stability", title, label, "", _PERCENT, tuple(series), categories)


def _orders(protocol: Protocol, groups: Sequence[Group]) -> Iterable[Chart]:
    robust = in_several_orders(groups)
    for orders in list(robust.values())[:1]:  # the same for all methods of a protocol
        series = []
        for group in robust:
            found = by_order(group)
            bars = [_bar(i, found[order]) for i, order in enumerate(orders)]
            series.append(Series(group.method, tuple(bars)))
        title, names = "Average accuracy by class order", tuple(f"order {o}" for o in orders)
        yield Chart("orders", title, protocol.label, "", _PERCENT, tuple(series), names)


def _flatness(protocol: Protocol, groups: Sequence[Group]) -> Iterable[Chart]:
    for rise in (False, True):
        series = []
        for group in groups:
            known = [run.flatness for run in group.runs if run.flatness is not None]
            if points := _flatness_points(known, rise):
                series.append(Series(group.method, points))
        if series:
            title = "Rise over the loss without noise" if rise else "Loss with noise on the weights"
            y = "mean cross-entropy of training images"
            x = "\N{GREEK SMALL LETTER SIGMA} of the noise"
            yield Chart("flatness", title, protocol.label, x, y, tuple(series))


def _flatness_points(known: Sequence[Mapping[str, Any]], rise: bool) -> tuple[ChartPoint, ...]:
    """The mean over all draws, by sigma, of the runs with the same sigmas as the first."""
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
            points.append(_point(sigma, values, 1))
    return tuple(points)


def _losses(protocol: Protocol, groups: Sequence[Group], losses: Losses) -> Iterable[Chart]:
    slots = dict.fromkeys(slot for group in groups for slot in losses.get(group, {}))
    for slot in slots:
        series = [
            Series(group.method, tuple(ChartPoint(*p) for p in points), bool(group.runs))
            for group in groups
            if (points := losses.get(group, {}).get(slot))
        ]
        title, label = f"Loss term: {slot}", protocol.label
        yield Chart("losses", title, label, "epoch, over all tasks", "loss", tuple(series))


def _memory(groups: Sequence[Group]) -> Iterable[Chart]:
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
    shared = set.intersection(*map(set, values.values()))
    return tuple(
        _point(
            size, [v for replicate, v in known.items() if replicate in shared or not shared], 100
        )
        for size, known in values.items()
    )


def _by_protocol(groups: Sequence[Group]) -> list[tuple[Protocol, list[Group]]]:
    found: dict[Protocol, list[Group]] = {}
    for group in groups:
        found.setdefault(group.protocol, []).append(group)
    return list(found.items())


def _point(x: float, values: Sequence[float], scale: float) -> ChartPoint:
    summary = Summary.of([scale * value for value in values])
    assert summary is not None
    return ChartPoint(x, summary.mean, summary.std)


def _bar(place: int, summary: Summary) -> ChartPoint:
    return ChartPoint(place, 100 * summary.mean, None if summary.std is None else 100 * summary.std)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return 100 * sum(known) / len(known) if known else None
