"""Groups of runs that differ only in seed and class order, so that their mean makes sense."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from densekd.reports.labels import Protocol, many, method_labels, natural_order
from densekd.reports.runs import AVERAGE, AnyRun, ReportedCompression, ReportedRun
from densekd.reports.statistics import Difference, Summary, group_by, paired_difference

_Run = TypeVar("_Run", ReportedRun, ReportedCompression)


@dataclass(frozen=True, eq=False)
class RunGroup:
    """All runs of a method within a protocol, finished or not, by seed and class order."""

    method: str  # its name, and what distinguishes it from others of that name
    protocol: Protocol
    all_runs: tuple[ReportedRun, ...]

    @cached_property
    def runs(self) -> tuple[ReportedRun, ...]:
        """The finished runs."""
        return tuple(run for run in self.all_runs if run.result is not None)

    @property
    def shown(self) -> tuple[ReportedRun, ...]:
        """The runs in a curve: the finished ones or, if there are none, those that have begun."""
        return self.runs or tuple(run for run in self.all_runs if run.steps)

    @property
    def state(self) -> str:
        """How far unfinished runs are; empty if all are finished."""
        left = [run for run in self.all_runs if run.result is None]
        if not left:
            return ""
        if len(self.all_runs) == 1:
            return left[0].progress
        return f"{len(self.runs)} of {len(self.all_runs)} finished"

    @property
    def replicates(self) -> str:
        """What a mean is taken over: ``1 seed and 5 orders``; empty if it is over seeds alone."""
        seeds, orders = (len({run.replicate[i] for run in self.runs}) for i in (0, 1))
        return f"{many(seeds, 'seed')} and {orders} orders" if orders > 1 else ""

    def summary(self, measure: str) -> Summary | None:
        """Mean and spread of a measure over the finished runs; None if there are none."""
        return Summary.of(run.measured(measure) for run in self.runs)

    def by_replicate(self, measure: str) -> dict[tuple[str, str], float]:
        """A measure of each finished run, by its seed and class order."""
        values = {run.replicate: run.measured(measure) for run in self.runs}
        return {replicate: value for replicate, value in values.items() if value is not None}


def group_runs(runs: Sequence[ReportedRun]) -> tuple[list[RunGroup], dict[ReportedRun, str]]:
    """Group the runs; also return the left-out runs with their labels.

    A run is left out if another one has the same settings, because it was copied, or repeated by
    another version. The most advanced run counts, among equals the latest.
    """
    members, repeated = _members(runs)
    groups = [
        RunGroup(label, protocol, tuple(run for _, run in sorted(group.items())))
        for (protocol, label), group in members.items()
    ]
    return sorted(groups, key=_position), repeated


def group_compressions(
    compressions: Sequence[ReportedCompression],
) -> dict[tuple[str, str], list[ReportedCompression]]:
    """Compressions by protocol and method, sorted; of those with the same settings, the latest."""
    members, _ = _members(compressions)
    return {key: [*members[key].values()] for key in sorted(members)}


def _members(
    runs: Sequence[_Run],
) -> tuple[dict[tuple[Any, str], dict[tuple[str, str], _Run]], dict[_Run, str]]:
    """The runs by protocol and label, then by replicate; and the repeated runs with labels."""
    members: dict[tuple[Any, str], dict[tuple[str, str], _Run]] = {}
    repeated: dict[_Run, str] = {}
    labels = method_labels([(run.method, run.protocol, run.settings) for run in runs])
    for run, label in sorted(zip(runs, labels, strict=True), key=lambda pair: _rank(pair[0])):
        group = members.setdefault((run.protocol, label), {})
        if (before := group.pop(run.replicate, None)) is not None:
            repeated[before] = label
        group[run.replicate] = run
    return members, repeated


def differences(
    groups: Sequence[RunGroup], measure: str
) -> list[tuple[RunGroup, RunGroup, Difference]]:
    """The paired difference of every two methods that share a protocol and a replicate."""
    found = []
    for first, second in itertools.combinations(groups, 2):
        if first.protocol == second.protocol:
            values = first.by_replicate(measure), second.by_replicate(measure)
            if (difference := paired_difference(*values)) is not None:
                found.append((first, second, difference))
    return found


def by_order(groups: Sequence[RunGroup]) -> dict[RunGroup, dict[str, Summary]]:
    """The average accuracy by class order, of methods that have several orders.

    It has only the orders that all such methods of a protocol share, if there are at least two.
    """
    several = {group: found for group in groups if len(found := _every_order(group)) > 1}
    shared = {}
    for group, found in several.items():
        rivals = [set(several[other]) for other in several if other.protocol == group.protocol]
        orders = sorted(set.intersection(*rivals), key=natural_order)
        if len(orders) > 1:
            shared[group] = {order: found[order] for order in orders}
    return shared


def _every_order(group: RunGroup) -> dict[str, Summary]:
    orders = group_by(group.runs, lambda run: run.replicate[1]).items()
    means = ((order, Summary.of(run.measured(AVERAGE) for run in runs)) for order, runs in orders)
    return {order: mean for order, mean in means if mean is not None}


def _rank(run: AnyRun) -> tuple[bool, int, float]:
    """Sort key: the most advanced run last, among equals the latest last."""
    file = run.folder / ("result.json" if run.result else "config.toml")
    steps = len(run.steps) if isinstance(run, ReportedRun) else 0
    return run.result is not None, steps, file.stat().st_mtime


def _position(group: RunGroup) -> tuple[list[tuple[int, str]], float, str]:
    """Sort key: protocol, then best accuracy first, groups without finished runs last."""
    summary = group.summary(AVERAGE)
    return natural_order(group.protocol.label), -summary.mean if summary else 1.0, group.method
