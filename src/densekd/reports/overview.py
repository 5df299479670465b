"""The tables of every report; a table without data has no rows."""

from collections.abc import Iterable, Mapping, Sequence

from densekd.reports.groups import RunGroup, by_order, differences
from densekd.reports.labels import natural_order
from densekd.reports.runs import AVERAGE, ReportedCompression, ReportedRun
from densekd.reports.statistics import Summary, gaps
from densekd.reports.tables import Column, FilledColumn, Table

_MEASURES = (
    Column(AVERAGE, "average", "percent"),
    Column("validation", "validation", "percent"),
    Column("accuracy", "last", "percent"),
    Column("base_accuracy", "base", "percent"),
    Column("old_accuracy", "old", "percent"),
    Column("new_accuracy", "new", "percent"),
    Column("forgetting", "forgetting", "percent"),
)
_IN_ALL, _LAST = "average over tasks", "after the last task"
# The other metrics, each as docs/metrics.md defines it.
METRICS = (
    Column("average_mean_task_accuracy", "mean of tasks", "percent", _IN_ALL),
    Column("average_mean_class_accuracy", "mean of classes", "percent", _IN_ALL),
    Column("average_task_incremental_accuracy", "task given", "percent", _IN_ALL),
    Column("mean_task_accuracy", "mean of tasks", "percent", _LAST),
    Column("mean_class_accuracy", "mean of classes", "percent", _LAST),
    Column("task_incremental_accuracy", "task given", "percent", _LAST),
    Column("learning_accuracy", "learning accuracy", "percent"),
    Column("backward_transfer", "backward transfer", "points"),
    Column("forward_transfer", "forward transfer", "points"),
)
NOTE_ON_METRICS = (
    "Mean of tasks, mean of classes: each counts once, whatever its number of test images. "
    "Task given: classified among the classes of the image's own task. Learning accuracy: on "
    "each task right after it was learned. Backward transfer: the change of a task's accuracy "
    "since then. Forward transfer: how much better the features of the network before a task "
    "tell its classes apart than those of random weights."
)
_METHOD, _PROTOCOL = Column("method", "method"), Column("protocol", "protocol")
_SECONDS, _RUNS = Column("seconds", "training time", "seconds"), Column("runs", "runs", "count")
_HOW = (
    "Percent of test images, classified among all classes seen. Average: mean of the accuracies "
    "after each task. Validation: the same on images held out of the training images. Measured "
    "after the last task: last (all classes), base (the first task's), old (all but the last "
    "task's), new (the last task's). Forgetting: how far earlier tasks fell from their best."
)
_SPREAD = "± is the sample standard deviation over seeds and class orders."


def comparison(groups: Sequence[RunGroup], targets: Mapping[RunGroup, float]) -> Table:
    """Results of each method beside the paper's average incremental accuracy (``targets``)."""
    ours = [group.summary(AVERAGE) for group in groups]
    paper = [targets.get(group) for group in groups]
    own = _own_columns(groups)
    columns: list[FilledColumn] = [
        *((c, [group.summary(c.key) for group in groups]) for c in (*_MEASURES, *own)),
        (Column("paper", "paper", "percent"), paper),
        (Column("gap", "gap", "points"), gaps(ours, paper)),
        (_SECONDS, [group.summary("seconds") for group in groups]),
        (_RUNS, [len(group.runs) for group in groups]),
        (Column("over", "over"), [group.replicates for group in groups]),
        (Column("state", "not finished"), [group.state for group in groups]),
    ]
    several = any(len(group.runs) > 1 for group in groups)
    note = f"{_HOW} {_SPREAD}" if several else _HOW
    if own:
        names = ", ".join(column.title for column in own)
        note += f" Custom metrics, after the last task: {names}."
    return _table("comparison", "What each method reached", note, _names(groups), columns)


def metrics_table(groups: Sequence[RunGroup]) -> Table:
    """The metrics that the comparison leaves out; groups that lack all of them have no row."""
    measured = [group for group in groups if any(map(group.summary, (c.key for c in METRICS)))]
    columns = [(column, [group.summary(column.key) for group in measured]) for column in METRICS]
    return _table("metrics", "Further metrics", NOTE_ON_METRICS, _names(measured), columns)


def _own_columns(groups: Sequence[RunGroup]) -> list[Column]:
    names = [name for group in groups for run in group.runs for name in run.own_metrics]
    return [Column(f"metrics.{name}", name, "number") for name in dict.fromkeys(names)]


def differences_table(groups: Sequence[RunGroup]) -> Table:
    """The paired differences between methods that share seeds and class orders."""
    found = differences(groups, AVERAGE)
    methods = [(first.method, second.method) for first, second, _ in found]
    intervals = [each.interval or (None, None) for _, _, each in found]
    columns: list[FilledColumn] = [
        (Column("first", "method"), [first for first, _ in methods]),
        (Column("second", "against"), [second for _, second in methods]),
        (_PROTOCOL, [first.protocol.label for first, _, _ in found]),
        (Column("difference", "difference", "points"), [each.mean for _, _, each in found]),
        (Column("low", "from", "points", "95 % interval"), [low for low, _ in intervals]),
        (Column("high", "to", "points", "95 % interval"), [high for _, high in intervals]),
        (Column("pairs", "pairs", "count"), [each.count for _, _, each in found]),
        (Column("verdict", "average accuracy is"), [each.verdict for _, _, each in found]),
    ]
    note = (
        "Differences of the average incremental accuracy, in points, between runs with the same "
        "seed, class order and protocol. The interval is Student's t over these pairs; a single "
        "pair has none. Intervals are not widened for the number of comparisons: one in twenty can "
        "be expected to miss by chance."
    )
    return Table.of("differences", "Differences in pairs", note, columns, methods)


def orders_table(groups: Sequence[RunGroup]) -> Table:
    """The average accuracy by class order, for methods that learned in several orders."""
    found = by_order(groups)
    orders = sorted({order for shared in found.values() for order in shared}, key=natural_order)
    over = [Summary.of(each.mean for each in shared.values()) for shared in found.values()]
    columns: list[FilledColumn] = []
    for order in orders:
        column = Column(f"order_{order}", order, "percent", "class order")
        columns.append((column, [shared.get(order) for shared in found.values()]))
    columns.append((Column("mean", "mean", "percent"), [each and each.mean for each in over]))
    variance = Column("variance", "variance", "variance")
    columns.append((variance, [each and each.variance for each in over]))
    note = (
        "Average incremental accuracy in percent, for the class orders that all methods of a "
        "protocol share. The variance is the sample variance over these orders."
    )
    return _table("orders", "Robustness to the class order", note, _names(found), columns)


def runs_table(groups: Sequence[RunGroup], repeated: Mapping[ReportedRun, str]) -> Table:
    """Every run, its progress, code and machine; ``repeated`` has left-out runs with labels."""
    labelled = [(run, group.method, "") for group in groups for run in group.all_runs]
    left_out = "left out: another run has the same settings"
    labelled += [(run, label, left_out) for run, label in repeated.items()]
    labelled.sort(key=lambda each: natural_order(each[0].protocol.label))
    runs = [run for run, _, _ in labelled]
    columns: list[FilledColumn] = [
        (Column("folder", "run"), [run.folder.name for run in runs]),
        (_METHOD, [method for _, method, _ in labelled]),
        (_PROTOCOL, [run.protocol.label for run in runs]),
        (Column("seed", "seed"), [run.replicate[0] for run in runs]),
        (Column("order", "order"), [run.replicate[1] for run in runs]),
        (Column("state", "state"), [run.progress for run in runs]),
        (_MEASURES[0], [run.measured(AVERAGE) for run in runs]),
        (_SECONDS, [run.seconds if run.steps else None for run in runs]),
        (Column("commit", "commit"), [run.commit for run in runs]),
        (Column("machine", "machine"), [_hardware(run) for run in runs]),
        (Column("note", "note"), [note for _, _, note in labelled]),
    ]
    return Table.of("runs", "Runs", "", columns, [(method,) for _, method, _ in labelled])


def compression_table(found: Mapping[tuple[str, str], Sequence[ReportedCompression]]) -> Table:
    """The accuracy of compressed networks and their teachers, by protocol and method."""
    names = [(method, protocol) for protocol, method in found]
    measures = (
        Column("accuracy", "accuracy", "percent"),
        Column("teacher_accuracy", "teacher's accuracy", "percent"),
        _SECONDS,
    )
    columns: list[FilledColumn] = [
        (column, [Summary.of(run.measured(column.key) for run in runs) for runs in found.values()])
        for column in measures
    ]
    columns.append((_RUNS, [len(runs) for runs in found.values()]))
    note = "Percent of test images after the last epoch."
    return _table("compression", "Model compression", note, names, columns)


def _hardware(run: ReportedRun) -> str:
    result = run.result or {}
    machine, engine = result.get("machine") or {}, result.get("engine") or {}
    parts = [machine.get("accelerator") or machine.get("processor") or engine.get("device")]
    if machine.get("cores") and not machine.get("accelerator"):
        parts.append(f"{engine.get('threads', '?')} of {machine['cores']} cores")
    return ", ".join(str(part) for part in parts if part)


def _names(groups: Iterable[RunGroup]) -> list[tuple[str, str]]:
    return [(group.method, group.protocol.label) for group in groups]


def _table(
    name: str,
    title: str,
    note: str,
    names: Sequence[tuple[str, str]],
    columns: Sequence[FilledColumn],
) -> Table:
    """A table whose rows are named by method and protocol."""
    methods = [method for method, _ in names]
    first = (_METHOD, methods), (_PROTOCOL, [protocol for _, protocol in names])
    return Table.of(name, title, note, (*first, *columns), [(method,) for method in methods])
