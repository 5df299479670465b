"""The figures of a report; figures without data are left out."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from densekd.json_checks import is_count
from densekd.reports.charts import Chart, ChartPoint, HeatMap, Series
from densekd.reports.events import mean_losses
from densekd.reports.groups import RunGroup, by_order
from densekd.reports.runs import AVERAGE, ReportedCompression, ReportedRun
from densekd.reports.statistics import Summary, group_by

_CURVES = {
    "accuracy": ("curves", "All classes seen"),
    "base_accuracy": ("curves", "The base task's classes"),
    "old_accuracy": ("stability", "Classes of earlier tasks"),
    "new_accuracy": ("stability", "The newest classes"),
}
_PERCENT = "% of test images"


def charts(groups: Sequence[RunGroup]) -> Iterator[Chart]:
    """All line and bar charts of class-incremental runs."""
    for own in group_by(groups, lambda group: group.protocol).values():
        yield from _curves(own)
        yield from _old_new(own)
        yield from _orders(own)
        yield from _flatness(own)
        yield from _losses(own)
    yield from _memory(groups)


def heat_maps(groups: Sequence[RunGroup]) -> Iterator[HeatMap]:
    """The accuracy matrix of each group, as the mean over its runs."""
    for group in groups:
        matrices = [[step["task_accuracies"] for step in run.steps] for run in group.shown]
        rows = [tuple(map(_mean, zip(*row, strict=True))) for row in zip(*matrices, strict=False)]
        if len(rows) > 1:
            label, done = group.protocol.label, bool(group.runs)
            yield HeatMap(group.method, label, tuple(rows), len(matrices), done)


def compression_charts(
    compressions: Mapping[tuple[str, str], Sequence[ReportedCompression]],
) -> Iterator[Chart]:
    """The mean loss of the students by epoch: a chart per protocol, a line per method."""
    found: dict[str, list[Series]] = {}
    for (protocol, method), runs in compressions.items():
        epochs = zip(*(run.result["epochs"] for run in runs), strict=False)
        losses = ((each[0]["epoch"], [epoch.get("loss") for epoch in each]) for each in epochs)
        points = _points((epoch, Summary.of(each)) for epoch, each in losses if None not in each)
        if points:
            found.setdefault(protocol, []).append(Series(method, points))
    for protocol, series in found.items():
        title = "The student's loss"
        yield Chart("compression", title, protocol, "epoch", "loss", tuple(series))


def curve(runs: Sequence[ReportedRun], measure: str) -> tuple[ChartPoint, ...]:
    """A measure after each task, as the mean over runs."""
    tasks = zip(*(run.steps for run in runs), strict=False)
    means = ((each[0]["classes_seen"], Summary.of(s.get(measure) for s in each)) for each in tasks)
    return _points(means, 100)


def _curves(groups: Sequence[RunGroup]) -> Iterator[Chart]:
    for measure, (section, classes) in _CURVES.items():
        lines = {group: curve(group.shown, measure) for group in groups}
        if any(len(points) > 1 for points in lines.values()):
            yield from _chart(section, f"{classes}, after each task", lines, "classes seen")


def _old_new(groups: Sequence[RunGroup]) -> Iterator[Chart]:
    measures = {"old_accuracy": "earlier tasks", "new_accuracy": "last task"}
    bars = {group: _points(enumerate(map(group.summary, measures)), 100) for group in groups}
    title = "Old and new classes after the last task"
    yield from _chart("stability", title, bars, categories=tuple(measures.values()))


def _orders(groups: Sequence[RunGroup]) -> Iterator[Chart]:
    found = by_order(groups)
    bars = {group: _points(enumerate(shared.values()), 100) for group, shared in found.items()}
    for orders in list(found.values())[:1]:  # the same for all methods of a protocol
        names = tuple(f"order {order}" for order in orders)
        yield from _chart("orders", "Average accuracy by class order", bars, categories=names)


def _flatness(groups: Sequence[RunGroup]) -> Iterator[Chart]:
    titles = {False: "Loss with noise on the weights", True: "Rise over the loss without noise"}
    for rise, title in titles.items():
        lines = {group: _points(_noisy_losses(group, rise)) for group in groups}
        x = "\N{GREEK SMALL LETTER SIGMA} of the noise"
        yield from _chart("flatness", title, lines, x, "mean cross-entropy of training images")


def _noisy_losses(group: RunGroup, rise: bool) -> Iterator[tuple[float, Summary | None]]:
    """The mean loss, or its rise, by sigma: over all draws of runs with the first run's sigmas."""
    known = [run.flatness for run in group.runs if run.flatness is not None]
    alike = [each["losses"] for each in known if each["sigmas"] == known[0]["sigmas"]]
    for place, sigma in enumerate(known[0]["sigmas"] if known else ()):
        yield (
            sigma,
            Summary.of(
                loss - (before if rise else 0)
                for losses in alike
                for loss, before in zip(losses[place], losses[0], strict=True)
                if loss is not None and before is not None
            ),
        )


def _losses(groups: Sequence[RunGroup]) -> Iterator[Chart]:
    losses = {group: mean_losses(group) for group in groups}
    for slot in dict.fromkeys(slot for curves in losses.values() for slot in curves):
        lines = {
            group: tuple(ChartPoint(*point) for point in curves.get(slot, ()))
            for group, curves in losses.items()
        }
        yield from _chart("losses", f"Loss term: {slot}", lines, "epoch, over all tasks", "loss")


def _memory(groups: Sequence[RunGroup]) -> Iterator[Chart]:
    """The average accuracy by exemplars per class, over protocols that differ only in these."""
    found: dict[str, dict[str, dict[int, RunGroup]]] = {}
    for group in groups:
        size: Any = group.all_runs[0].settings.get("memory.per_class")
        if is_count(size) and group.runs:
            label = replace(group.protocol, memory="").label
            found.setdefault(label, {}).setdefault(group.method, {})[size] = group
    for label, methods in found.items():
        lines = [Series(m, _by_memory(sizes)) for m, sizes in methods.items() if len(sizes) > 1]
        if lines:
            title, x = "Average accuracy by memory", "exemplars a class"
            yield Chart("memory", title, label, x, _PERCENT, tuple(lines))


def _by_memory(sizes: Mapping[int, RunGroup]) -> tuple[ChartPoint, ...]:
    """The points of a method: means over the replicates that all sizes share, or all if none is."""
    values = {size: group.by_replicate(AVERAGE) for size, group in sorted(sizes.items())}
    every = [set(known) for known in values.values()]
    counted = set.intersection(*every) or set.union(*every)
    means = {
        size: Summary.of(value for replicate, value in known.items() if replicate in counted)
        for size, known in values.items()
    }
    return _points(means.items(), 100)


def _chart(
    section: str,
    title: str,
    points: Mapping[RunGroup, tuple[ChartPoint, ...]],
    x: str = "",
    y: str = _PERCENT,
    categories: tuple[str, ...] = (),
) -> Iterator[Chart]:
    """A chart of a protocol's groups that have points; nothing if none has."""
    series = [Series(g.method, p, bool(g.runs)) for g, p in points.items() if p]
    if series:
        label = next(iter(points)).protocol.label
        yield Chart(section, title, label, x, y, tuple(series), categories)


def _points(
    summaries: Iterable[tuple[float, Summary | None]], scale: float = 1
) -> tuple[ChartPoint, ...]:
    known = ((x, each.mean, each.std) for x, each in summaries if each is not None)
    return tuple(ChartPoint(x, scale * y, std and scale * std) for x, y, std in known)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return 100 * sum(known) / len(known) if known else None
