"""The tables that every report has, whatever its runs were made for."""

from collections.abc import Mapping, Sequence

from densekd.report.groups import Group, differences
from densekd.report.labels import natural
from densekd.report.runs import CompressionRun, RunRecord
from densekd.report.statistics import Summary
from densekd.report.tables import Cell, Column, Row, Table, filled

AVERAGE = "average_incremental_accuracy"
_MEASURES = (
    Column(AVERAGE, "average", "percent"),
    Column("accuracy", "last", "percent"),
    Column("base_accuracy", "base", "percent"),
    Column("old_accuracy", "old", "percent"),
    Column("new_accuracy", "new", "percent"),
    Column("forgetting", "forgetting", "percent"),
)
_METHOD, _PROTOCOL = Column("method", "method"), Column("protocol", "protocol")
_HOW = (
    "Percent of test images, with the best of all classes seen. Average: over the models after "
    "each task. The others: after the last task, on all classes, those learned first, those of "
    "earlier tasks, those of the last. Forgetting: how far earlier tasks fell from their best."
)
_SPREAD = "± is the standard deviation of the sample over seeds and class orders."


def comparison(groups: Sequence[Group], targets: Mapping[Group, float]) -> Table:
    """What each method reached, and what the paper says where it does.

    Args:
        groups: the runs.
        targets: the paper's average incremental accuracy as a share, where it has one.
    """
    columns = (
        _METHOD,
        _PROTOCOL,
        *_MEASURES,
        Column("paper", "paper", "percent"),
        Column("gap", "gap", "points"),
        Column("seconds", "training time", "seconds"),
        Column("runs", "runs", "count"),
        Column("over", "over"),
        Column("state", "not finished"),
    )
    rows = []
    for group in groups:
        summaries = [group.summary(column.key) for column in _MEASURES]
        cells = (*summaries, *_against(summaries[0], targets.get(group)), group.summary("seconds"))
        about = (len(group.runs), group.replicates, group.state)
        label = group.protocol.label
        rows.append(Row((group.method, label, *cells, *about), (group.method,), label))
    several = any(len(group.runs) > 1 for group in groups)
    note = f"{_HOW} {_SPREAD}" if several else _HOW
    return _table("comparison", "What each method reached", note, columns, rows)


def differences_table(groups: Sequence[Group]) -> Table | None:
    """Each method against each other; None if no two have a pair of runs."""
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
        "Differences of the average incremental accuracy, in points, between runs that share seed, "
        "class order and all else of the protocol; the interval is Student's t over these pairs. "
        "With one pair nothing can be said. Intervals are not widened for the number of "
        "comparisons: of twenty, one can be expected to miss by chance."
    )
    return _table("differences", "Differences in pairs", note, columns, rows) if rows else None


def orders_table(groups: Sequence[Group]) -> Table | None:
    """The average accuracy by class order; None if no method learned in several."""
    robust = in_several_orders(groups)
    orders = sorted({order for shared in robust.values() for order in shared}, key=natural)
    columns = (
        _METHOD,
        _PROTOCOL,
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
        label = group.protocol.label
        rows.append(Row((group.method, label, *cells, *end), (group.method,), label))
    note = (
        "Average incremental accuracy in percent, by the orders that all methods of a protocol "
        "have in common; the variance is the sample's, over orders."
    )
    title = "Robustness to the class order"
    return _table("orders", title, note, columns, rows) if rows else None


def in_several_orders(groups: Sequence[Group]) -> dict[Group, list[str]]:
    """The methods that learned in several class orders, with those that their rivals have too."""
    robust = [group for group in groups if len(by_order(group)) > 1]
    found = {}
    for group in robust:
        rivals = [by_order(other) for other in robust if other.protocol == group.protocol]
        shared = sorted(set.intersection(*map(set, rivals)), key=natural)
        if len(shared) > 1:
            found[group] = shared
    return found


def by_order(group: Group) -> dict[str, Summary]:
    """The average accuracy over the seeds of each class order."""
    values: dict[str, list[float]] = {}
    for (_, order), value in group.by_draw(AVERAGE).items():
        values.setdefault(order, []).append(value)
    summaries = {order: Summary.of(found) for order, found in values.items()}
    return {order: summary for order, summary in summaries.items() if summary is not None}


def runs_table(groups: Sequence[Group], repeated: Sequence[RunRecord]) -> Table:
    """Every run, how far it is, and what it was computed with and on."""
    columns = (
        Column("folder", "run"),
        _METHOD,
        _PROTOCOL,
        Column("seed", "seed"),
        Column("order", "order"),
        Column("state", "state"),
        _MEASURES[0],
        Column("seconds", "training time", "seconds"),
        Column("commit", "commit"),
        Column("machine", "machine"),
        Column("note", "note"),
    )
    labels = {id(run): group.method for group in groups for run in group.all_runs}
    runs = [run for group in groups for run in group.all_runs]
    rows = []
    for run in sorted((*runs, *repeated), key=lambda run: natural(run.protocol.label)):
        method = labels.get(id(run), str(run.settings.get("method.name")))
        note = "" if id(run) in labels else "left out: another run has the same settings"
        cells: tuple[Cell, ...] = (
            *(run.folder.name, method, run.protocol.label, *run.drawn, run.progress),
            *(run.measured(AVERAGE), run.seconds if run.steps else None),
            *(commit_of(run), hardware_of(run), note),
        )
        rows.append(Row(cells, (method,), run.protocol.label))
    return _table("runs", "Runs", "", columns, rows)


def compression_table(compressions: Sequence[CompressionRun]) -> Table | None:
    """What small networks learned from large ones; None if none did."""
    columns = (
        _METHOD,
        _PROTOCOL,
        Column("accuracy", "accuracy", "percent"),
        Column("teacher_accuracy", "teacher's accuracy", "percent"),
        Column("seconds", "training time", "seconds"),
        Column("runs", "runs", "count"),
    )
    rows = []
    for (protocol, method), found in sorted(by_lesson(compressions).items()):
        measures = ("accuracy", "teacher_accuracy", "seconds")
        values = [[each.measured(name) for each in found] for name in measures]
        cells = [Summary.of([value for value in row if value is not None]) for row in values]
        rows.append(Row((method, protocol, *cells, len(found)), (method,), protocol))
    note = "Percent of test images after the last epoch."
    return _table("compression", "Model compression", note, columns, rows) if rows else None


def by_lesson(
    compressions: Sequence[CompressionRun],
) -> dict[tuple[str, str], list[CompressionRun]]:
    """Compressions by protocol and method."""
    found: dict[tuple[str, str], list[CompressionRun]] = {}
    for each in compressions:
        found.setdefault((each.protocol, each.method), []).append(each)
    return found


def commit_of(run: RunRecord) -> str:
    """The first digits of the commit that a run was made by, if it is known."""
    commit = (run.result or {}).get("commit") or ""
    return str(commit)[:10] + ("+" if str(commit).endswith("+") else "")


def hardware_of(run: RunRecord) -> str:
    """What a run was computed on, as far as it is known."""
    result = run.result or {}
    machine, engine = result.get("machine") or {}, result.get("engine") or {}
    parts = [machine.get("accelerator") or machine.get("processor") or engine.get("device")]
    if machine.get("cores") and not machine.get("accelerator"):
        parts.append(f"{engine.get('threads', '?')} of {machine['cores']} cores")
    return ", ".join(str(part) for part in parts if part)


def _against(ours: Summary | None, paper: float | None) -> tuple[Cell, Cell]:
    return paper, None if ours is None or paper is None else ours.mean - paper


def _table(
    name: str, title: str, note: str, columns: Sequence[Column], rows: Sequence[Row]
) -> Table:
    kept, fewer = filled(columns, rows)
    return Table(name, title, note, tuple(kept), tuple(fewer), _PROTOCOL.key)
