"""The tables that every report has."""

from collections.abc import Mapping, Sequence

from densekd.report.groups import Group, differences
from densekd.report.labels import natural_order
from densekd.report.runs import AVERAGE, CompressionRun, RunRecord
from densekd.report.statistics import Summary
from densekd.report.tables import Cell, Column, Row, Table

_MEASURES = (
    Column(AVERAGE, "average", "percent"),
    Column("accuracy", "last", "percent"),
    Column("base_accuracy", "base", "percent"),
    Column("old_accuracy", "old", "percent"),
    Column("new_accuracy", "new", "percent"),
    Column("forgetting", "forgetting", "percent"),
)
_METHOD, _PROTOCOL = Column("method", "method"), Column("protocol", "protocol")
_SECONDS, _RUNS = Column("seconds", "training time", "seconds"), Column("runs", "runs", "count")
_HOW = (
    "Percent of test images, classified among all classes seen. Average: mean of the accuracies "
    "after each task. Measured after the last task: last (all classes), base (the first task's), "
    "old (all but the last task's), new (the last task's). Forgetting: how far earlier tasks fell "
    "from their best."
)
_SPREAD = "± is the sample standard deviation over seeds and class orders."


def comparison(groups: Sequence[Group], targets: Mapping[Group, float]) -> Table:
    """What each method reached.

    Args:
        groups: the runs.
        targets: the paper's average incremental accuracy as a share, where it has one.
    """
    columns = (
        *_MEASURES,
        Column("paper", "paper", "percent"),
        Column("gap", "gap", "points"),
        _SECONDS,
        _RUNS,
        Column("over", "over"),
        Column("state", "not finished"),
    )
    rows = []
    for group in groups:
        summaries = [group.summary(column.key) for column in _MEASURES]
        ours, paper = summaries[0], targets.get(group)
        gap = None if ours is None or paper is None else ours.mean - paper
        runs = (len(group.runs), group.replicates, group.state)
        rows.append(_row(group, *summaries, paper, gap, group.summary("seconds"), *runs))
    several = any(len(group.runs) > 1 for group in groups)
    note = f"{_HOW} {_SPREAD}" if several else _HOW
    return _table("comparison", "What each method reached", note, columns, rows)


def differences_table(groups: Sequence[Group]) -> Table | None:
    """The paired differences between methods; None if no two methods share a replicate."""
    columns = (
        Column("first", "method"),
        Column("second", "against"),
        _PROTOCOL,
        Column("difference", "difference", "points"),
        Column("low", "from", "points", "95 % interval"),
        Column("high", "to", "points", "95 % interval"),
        Column("pairs", "pairs", "count"),
        Column("verdict", "average accuracy is"),
    )
    rows = []
    for first, second, found in differences(groups, AVERAGE):
        low, high = found.interval or (None, None)
        label, methods = first.protocol.label, (first.method, second.method)
        cells = (*methods, label, found.mean, low, high, found.count, found.verdict)
        rows.append(Row(cells, methods, label))
    note = (
        "Differences of the average incremental accuracy, in points, between runs with the same "
        "seed, class order and protocol. The interval is Student's t over these pairs; a single "
        "pair has none. Intervals are not widened for the number of comparisons: one in twenty can "
        "be expected to miss by chance."
    )
    title = "Differences in pairs"
    return _table("differences", title, note, columns, rows, ()) if rows else None


def orders_table(groups: Sequence[Group]) -> Table | None:
    """The average accuracy by class order; None if no method learned in several."""
    robust = in_several_orders(groups)
    orders = sorted({order for shared in robust.values() for order in shared}, key=natural_order)
    columns = (
        *(Column(f"order_{order}", order, "percent", "class order") for order in orders),
        Column("mean", "mean", "percent"),
        Column("variance", "variance", "variance"),
    )
    rows = []
    for group, shared in robust.items():
        found = by_order(group)
        cells = [found[order] if order in shared else None for order in orders]
        over = Summary.of([cell.mean for cell in cells if cell is not None])
        end = (None, None) if over is None else (over.mean, over.variance)
        rows.append(_row(group, *cells, *end))
    note = (
        "Average incremental accuracy in percent, for the class orders that all methods of a "
        "protocol share. The variance is the sample variance over these orders."
    )
    title = "Robustness to the class order"
    return _table("orders", title, note, columns, rows) if rows else None


def in_several_orders(groups: Sequence[Group]) -> dict[Group, list[str]]:
    """The methods with several class orders, and the orders that all of a protocol share."""
    robust = [group for group in groups if len(by_order(group)) > 1]
    found = {}
    for group in robust:
        rivals = [by_order(other) for other in robust if other.protocol == group.protocol]
        shared = sorted(set.intersection(*map(set, rivals)), key=natural_order)
        if len(shared) > 1:
            found[group] = shared
    return found


def by_order(group: Group) -> dict[str, Summary]:
    """The average accuracy over the seeds of each class order."""
    values: dict[str, list[float]] = {}
    for (_, order), value in group.by_replicate(AVERAGE).items():
        values.setdefault(order, []).append(value)
    summaries = {order: Summary.of(found) for order, found in values.items()}
    return {order: summary for order, summary in summaries.items() if summary is not None}


def runs_table(groups: Sequence[Group], repeated: Sequence[RunRecord]) -> Table:
    """Every run, its progress, code and machine."""
    columns = (
        Column("folder", "run"),
        _METHOD,
        _PROTOCOL,
        Column("seed", "seed"),
        Column("order", "order"),
        Column("state", "state"),
        _MEASURES[0],
        _SECONDS,
        Column("commit", "commit"),
        Column("machine", "machine"),
        Column("note", "note"),
    )
    labelled = [(run, group.method, "") for group in groups for run in group.all_runs]
    left_out = "left out: another run has the same settings"
    labelled += [(run, str(run.settings.get("method.name")), left_out) for run in repeated]
    rows = []
    for run, method, note in sorted(
        labelled, key=lambda each: natural_order(each[0].protocol.label)
    ):
        cells: tuple[Cell, ...] = (
            *(run.folder.name, method, run.protocol.label, *run.replicate, run.progress),
            *(run.measured(AVERAGE), run.seconds if run.steps else None),
            *(commit_of(run), _hardware(run), note),
        )
        rows.append(Row(cells, (method,), run.protocol.label))
    return _table("runs", "Runs", "", columns, rows, ())


def compression_table(compressions: Sequence[CompressionRun]) -> Table | None:
    """What small networks learned from large ones; None if there are no compressions."""
    columns = (
        Column("accuracy", "accuracy", "percent"),
        Column("teacher_accuracy", "teacher's accuracy", "percent"),
        _SECONDS,
        _RUNS,
    )
    rows = []
    for (protocol, method), found in sorted(group_compressions(compressions).items()):
        keys = [column.key for column in columns[:-1]]
        cells = [Summary.of([each.measured(key) for each in found]) for key in keys]
        rows.append(Row((method, protocol, *cells, len(found)), (method,), protocol))
    note = "Percent of test images after the last epoch."
    return _table("compression", "Model compression", note, columns, rows) if rows else None


def group_compressions(
    compressions: Sequence[CompressionRun],
) -> dict[tuple[str, str], list[CompressionRun]]:
    """Compressions by protocol and method."""
    found: dict[tuple[str, str], list[CompressionRun]] = {}
    for each in compressions:
        found.setdefault((each.protocol, each.method), []).append(each)
    return found


def commit_of(run: RunRecord) -> str:
    """The first digits of a run's commit, with + if files were changed; empty if unknown."""
    commit = (run.result or {}).get("commit") or ""
    return str(commit)[:10] + ("+" if str(commit).endswith("+") else "")


def _hardware(run: RunRecord) -> str:
    result = run.result or {}
    machine, engine = result.get("machine") or {}, result.get("engine") or {}
    parts = [machine.get("accelerator") or machine.get("processor") or engine.get("device")]
    if machine.get("cores") and not machine.get("accelerator"):
        parts.append(f"{engine.get('threads', '?')} of {machine['cores']} cores")
    return ", ".join(str(part) for part in parts if part)


def _row(group: Group, *cells: Cell) -> Row:
    label = group.protocol.label
    return Row((group.method, label, *cells), (group.method,), label)


def _table(
    name: str,
    title: str,
    note: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    first: Sequence[Column] = (_METHOD, _PROTOCOL),
) -> Table:
    """A table without empty columns, with protocols as headings."""
    table = Table(name, title, note, (*first, *columns), tuple(rows), _PROTOCOL.key)
    return table.without_empty_columns()
