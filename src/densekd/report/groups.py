"""Runs that differ only in what is drawn, so that a mean can be taken of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from densekd.report.labels import Protocol, method_labels, natural
from densekd.report.runs import RunRecord
from densekd.report.statistics import Difference, Summary, paired_difference


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of a method within a protocol.

    Args:
        method: its name, and what distinguishes it from others of that name.
        protocol: what it is compared within.
        all_runs: in the order of seeds and class orders, those that aren't finished too.
    """

    method: str
    protocol: Protocol
    all_runs: tuple[RunRecord, ...]

    @cached_property
    def runs(self) -> tuple[RunRecord, ...]:
        """The finished runs."""
        return tuple(run for run in self.all_runs if run.result is not None)

    @property
    def shown(self) -> tuple[RunRecord, ...]:
        """What a curve is made of: finished runs or, where there are none, what has begun."""
        return self.runs or tuple(run for run in self.all_runs if run.steps)

    @property
    def state(self) -> str:
        """How far it is, in words."""
        left = [run for run in self.all_runs if run.result is None]
        if not left:
            return ""
        if len(self.all_runs) == 1:
            return left[0].progress
        return f"{len(self.runs)} of {len(self.all_runs)} finished"

    @property
    def replicates(self) -> str:
        """Over what a mean is taken if not over seeds alone: ``1 seed and 5 orders``."""
        seeds, orders = (len({run.drawn[i] for run in self.runs}) for i in (0, 1))
        return f"{seeds} seed{'s' * (seeds != 1)} and {orders} orders" if orders > 1 else ""

    def summary(self, measure: str) -> Summary | None:
        """Mean and spread of a measure over the finished runs; None if there is none."""
        values = [run.measured(measure) for run in self.runs]
        return Summary.of([value for value in values if value is not None])

    def by_draw(self, measure: str) -> dict[tuple[str, str], float]:
        """A measure of each finished run, by its seed and class order."""
        values = {run.drawn: run.measured(measure) for run in self.runs}
        return {drawn: value for drawn, value in values.items() if value is not None}


def group(runs: Sequence[RunRecord]) -> tuple[list[Group], list[RunRecord]]:
    """The runs in groups, and those that were left out as they repeat another one.

    Two runs are the same when all settings agree, as a run that was copied or one that another
    version made again. The one that is furthest counts, of those the latest.
    """
    members: dict[tuple[Protocol, str], dict[tuple[str, str], RunRecord]] = {}
    repeated: list[RunRecord] = []
    labels = method_labels([run.settings for run in runs])
    for run, label in sorted(zip(runs, labels, strict=True), key=lambda pair: _age(pair[0])):
        group = members.setdefault((run.protocol, label), {})
        if (before := group.pop(run.drawn, None)) is not None:
            repeated.append(before)
        group[run.drawn] = run
    groups = [
        Group(label, protocol, tuple(run for _, run in sorted(group.items())))
        for (protocol, label), group in members.items()
    ]
    return sorted(groups, key=_place), repeated


def differences(groups: Sequence[Group], measure: str) -> list[tuple[Group, Group, Difference]]:
    """Each method against each other one of its protocol, over the pairs that they share."""
    found = []
    for i, first in enumerate(groups):
        for second in groups[i + 1 :]:
            if first.protocol != second.protocol:
                continue
            pair = (first, second)
            values = {each.method: each.by_draw(measure) for each in pair}
            difference = paired_difference(values[first.method], values[second.method])
            if difference is not None:
                found.append((*pair, difference))
    return found


def _age(run: RunRecord) -> tuple[bool, int, float]:
    file = run.folder / ("result.json" if run.result else "config.toml")
    return run.result is not None, len(run.steps), file.stat().st_mtime


def _place(group: Group) -> tuple[list[tuple[int, str]], float, str]:
    """By protocol, the best first, the unfinished last."""
    summary = group.summary("average_incremental_accuracy")
    return natural(group.protocol.label), -summary.mean if summary else 1.0, group.method
