import json
from pathlib import Path

import pytest

from densekd.files import read_sealed_text, write_sealed_json, write_sealed_text
from densekd.reports.experiments import ReportedSweep, experiment_tables, read_sweep, targets_of
from densekd.reports.groups import group_runs
from densekd.reports.runs import find_runs
from densekd.reports.statistics import Summary
from densekd.reports.tables import Cell, Table

from support.run_folders import rewrite, write_run, write_sweep

DISTILLATIONS = """
title = "Distillations"
about = "Two of them."
[grid]
"method.name" = ["gkd", "rdkd"]
"scenario.steps" = [1, 5]
seed = [1, 2]
[table]
rows = "method.name"
columns = "scenario.steps"
[paper.average_incremental_accuracy]
gkd = [65.73, 64.41]
rdkd = [nan, 65.06]
[paper.seconds]
gkd = [6840, 7920]
"""
ORDERS = """
title = "Orders"
about = "Three of them."
[grid]
"method.name" = ["gkd"]
"scenario.order" = [1, 2, 3]
"memory.per_class" = [5, 20]
[table]
rows = "method.name"
columns = "scenario.order"
[paper.average_incremental_accuracy]
gkd = 66.49
[paper.variance]
gkd = 1.29
"""
COMPRESSION = """
kind = "compression"
title = "Compression"
about = "Of one network."
[grid]
method = ["kd"]
student = ["resnet8"]
[table]
rows = "method"
columns = "student"
[paper.accuracy]
kd = [75.16]
"""


def append(file: Path, text: str) -> None:
    """Add to the copy of an experiment file that a sweep keeps."""
    write_sealed_text(file, read_sealed_text(file, 99999) + text)


def average(folder: Path) -> float:
    result = json.loads((folder / "result.json").read_text())
    return float(result["average_incremental_accuracy"])


def cells(table: Table, row: int) -> dict[str, Cell]:
    keys = [column.key for column in table.columns]
    return dict(zip(keys, table.rows[row].cells, strict=True))


def read(out: Path, folder: Path) -> tuple[ReportedSweep, tuple[Table, ...]]:
    found = find_runs([out])
    each = read_sweep(folder, found)
    return each, experiment_tables(each, {run: "x" for run in found.runs})


def distillations(out: Path, *more: str) -> tuple[dict[tuple[str, int, int], Path], Path]:
    runs = {
        (method, steps, seed): write_run(
            out, f"method.name={method}", f"scenario.steps={steps}", f"seed={seed}", *more
        )
        for method in ("gkd", "rdkd")
        for steps in (1, 5)
        for seed in (1, 2)
    }
    keys = ("method.name", "scenario.steps", "seed")
    points = {folder: dict(zip(keys, run, strict=True)) for run, folder in runs.items()}
    return runs, write_sweep(out, "distillations", DISTILLATIONS, points)


def test_a_table_has_ours_the_papers_and_the_gap(tmp_path: Path) -> None:
    runs, folder = distillations(tmp_path)
    each, (table,) = read(tmp_path, folder)
    assert each.progress == "8 of 8 runs finished"
    assert each.deviation == ""
    gkd, rdkd = cells(table, 0), cells(table, 1)
    key = "steps_5_average_incremental_accuracy"
    ours = Summary.of([average(runs["gkd", 5, seed]) for seed in (1, 2)])
    assert ours is not None
    assert gkd[key] == ours
    assert gkd[f"{key}_paper"] == pytest.approx(0.6441)
    assert gkd[f"{key}_gap"] == pytest.approx(ours.mean - 0.6441)
    assert rdkd["steps_1_average_incremental_accuracy_paper"] is None
    assert rdkd["steps_1_average_incremental_accuracy_gap"] is None
    time = gkd["steps_5_seconds"]
    assert isinstance(time, Summary)
    assert time.mean == pytest.approx(sum(1.5 + number for number in range(6)))
    assert gkd["steps_5_seconds_paper"] == 7920
    assert "steps_5_seconds_gap" not in gkd
    assert [c.group for c in table.columns if c.key.startswith(key)] == ["T = 5"] * 3
    assert table.rows[0].methods == ("x",)


def test_changed_settings_are_named(tmp_path: Path) -> None:
    _, folder = distillations(tmp_path, "epochs=0.1")
    each, (table,) = read(tmp_path, folder)
    assert each.deviation.startswith("Changed settings: 10 % of the epochs; not comparable")
    assert each.deviation in table.note
    assert cells(table, 0)["schedule"] == "10 % of the epochs"
    record = json.loads((folder / "runs.json").read_text())
    record["settings"] = {"data": {"source": "cifar10", "dir": "x"}}
    rewrite(folder / "runs.json", record)
    runs = find_runs([tmp_path])
    each = read_sweep(folder, runs)
    assert "10 % of the epochs, data.source cifar10;" in each.deviation
    groups, _ = group_runs(runs.runs)
    assert targets_of([each], groups) == {}


@pytest.mark.parametrize(
    ("changes", "compared"),
    [
        ({"data": {"source": "cifar10"}}, False),
        ({"data": {"per_class": 100}}, False),
        ({"data": {"validation": 0.1}}, False),
        ({"network": "resnet14"}, False),
        ({"memory": {"per_class": 5}}, False),
        ({"scenario": {"base": 2}}, False),
        ({"method": {"options": {"temperature": 4.0}}}, False),
        ({"data": {"source": "digits"}}, True),  # as in the file
        ({"epochs": 0.1, "scenario": {"order": 3}, "engine": {"precision": "32"}}, True),
    ],
)
def test_the_paper_is_beside_runs_of_its_own_protocol_only(
    changes: dict[str, object], compared: bool, tmp_path: Path
) -> None:
    _, folder = distillations(tmp_path)
    record = json.loads((folder / "runs.json").read_text())
    rewrite(folder / "runs.json", {**record, "settings": changes})
    found = find_runs([tmp_path])
    each = read_sweep(folder, found)
    (table,) = experiment_tables(each, {})
    keys = [column.key for column in table.columns]
    assert any("paper" in key for key in keys) == compared
    assert any("gap" in key for key in keys) == compared
    assert ("not comparable" in each.deviation) != compared
    groups, _ = group_runs(found.runs)
    assert bool(targets_of([each], groups)) == compared


def test_where_imagenet_is_does_not_matter(tmp_path: Path) -> None:
    _, folder = distillations(tmp_path)
    append(
        folder / "experiment.toml",
        '[settings]\ndata.source = "imagenet100:imagenet"\nscenario.order = 1993\n',
    )
    record = json.loads((folder / "runs.json").read_text())
    for settings, compared in (
        ({"data": {"source": "imagenet100:/elsewhere"}}, True),
        ({"data": {"source": "imagenet:/elsewhere"}}, False),
        ({"scenario": {"order": 3}}, False),  # the file has an order
    ):
        rewrite(folder / "runs.json", {**record, "settings": settings})
        _, (table,) = read(tmp_path, folder)
        assert any("paper" in column.key for column in table.columns) == compared


def test_rows_and_columns_that_were_added_have_a_table_of_their_own(tmp_path: Path) -> None:
    points = {}
    for method, steps in (("gkd", 1), ("gkd", 5), ("tkd", 1), ("gkd", 0)):
        point = {"method.name": method, "scenario.steps": steps}
        base = [] if steps else ["scenario.base=10"]
        points[write_run(tmp_path, f"method.name={method}", f"scenario.steps={steps}", *base)] = (
            point
        )
    _, (own, added) = read(tmp_path, write_sweep(tmp_path, "mine", DISTILLATIONS, points))
    assert (own.name, added.name) == ("mine", "mine-added")
    assert added.title == "Distillations (added by --grid)"
    assert [row.cells[0] for row in own.rows] == ["gkd"]
    assert [row.cells[0] for row in added.rows] == ["tkd", "gkd"]
    assert any("paper" in column.key for column in own.columns)
    assert not any("paper" in column.key for column in added.columns)


def test_a_failure_that_a_later_success_replaced_is_gone(tmp_path: Path) -> None:
    point = {"method.name": "gkd", "scenario.steps": 5}
    done = write_run(tmp_path, "method.name=gkd")
    points = {tmp_path / "gone": point, done: point}
    folder = write_sweep(tmp_path, "some", DISTILLATIONS, points)
    each, _ = read(tmp_path, folder)
    assert (each.progress, each.remarks) == ("1 of 1 run finished", [])
    # It was run by another command since.
    record = json.loads((folder / "runs.json").read_text())
    record["runs"] = [{**record["runs"][1], "state": "failed", "reason": "the disk is full."}]
    rewrite(folder / "runs.json", record)
    each, _ = read(tmp_path, folder)
    assert (each.progress, each.remarks) == ("1 of 1 run finished", [])


def test_a_file_that_was_edited_between_runs_is_named(tmp_path: Path) -> None:
    runs, folder = distillations(tmp_path)
    for number, run in enumerate(runs.values()):
        write_sealed_json(run / "code.json", {"mine.py": str(number // 4), "order.txt": "1"})
    each, _ = read(tmp_path, folder)
    assert each.remarks == ["mine.py differs between these runs."]


def test_what_was_left_out_is_said_once_for_each_reason(tmp_path: Path) -> None:
    _, folder = distillations(tmp_path)
    record = json.loads((folder / "runs.json").read_text())
    points = [{"method.name": name, "scenario.steps": 3} for name in ("gkd", "rdkd")]
    record["left_out"] = [{"point": point, "reason": "no classes."} for point in points]
    rewrite(folder / "runs.json", record)
    each, _ = read(tmp_path, folder)
    assert each.remarks == ["Impossible: gkd steps=3, rdkd steps=3: no classes."]


def test_the_paper_is_beside_the_methods_that_it_has(tmp_path: Path) -> None:
    _, folder = distillations(tmp_path)
    write_run(tmp_path, "method.name=tkd")
    runs = find_runs([tmp_path])
    groups, _ = group_runs(runs.runs)
    found = {
        (g.method, g.protocol.tasks): round(100 * value, 2)
        for g, value in targets_of([read_sweep(folder, runs)], groups).items()
    }
    expected = {("gkd", "T = 1"): 65.73, ("gkd", "T = 5"): 64.41, ("rdkd", "T = 5"): 65.06}
    assert found == expected


def test_orders_have_a_mean_and_a_variance_and_other_keys_tables_of_their_own(
    tmp_path: Path,
) -> None:
    points = {}
    for size in (5, 20):
        for order in (1, 2, 3):
            settings = ("method.name=gkd", f"scenario.order={order}", f"memory.per_class={size}")
            point = {"method.name": "gkd", "scenario.order": order, "memory.per_class": size}
            points[write_run(tmp_path, *settings)] = point
    folder = write_sweep(tmp_path, "orders", ORDERS, points)
    _, (few, many) = read(tmp_path, folder)
    assert (few.name, few.title) == ("orders-per_class-5", "Orders (5 a class)")
    values = [average(run) for run, point in points.items() if point["memory.per_class"] == 20]
    whole = Summary.of(values)
    assert whole is not None
    row = cells(many, 0)
    orders = [row[f"order_{order}_average_incremental_accuracy"] for order in (1, 2, 3)]
    assert orders == [Summary(value, None, 1) for value in values]
    assert (row["mean"], row["variance"]) == (whole.mean, whole.variance)
    assert (row["mean_paper"], row["variance_paper"]) == pytest.approx((0.6649, 1.29e-4))


def added(out: Path, key: str, values: tuple[object, ...]) -> tuple[dict[object, Path], Path]:
    """A sweep as ``--grid KEY=VALUES`` makes it, with an axis that the file doesn't have.

    Its first run, by None, is of a call before that one.
    """
    own = {"method.name": "gkd", "scenario.steps": 1}
    points: dict[Path, dict[str, object]] = {}
    runs: dict[object, Path] = {}
    for seed, value in enumerate((None, *values)):
        more = {} if value is None else {key: value}
        settings = {**own, **more, "seed": seed}
        runs[value] = write_run(out, *(f"{name}={each}" for name, each in settings.items()))
        points[runs[value]] = settings
    return runs, write_sweep(out, "distillations", DISTILLATIONS, points)


def test_an_axis_that_the_file_lacks_has_tables_of_its_own_without_the_paper(
    tmp_path: Path,
) -> None:
    runs, folder = added(tmp_path, "memory.per_class", (5, 20))
    _, tables = read(tmp_path, folder)
    names = ["distillations", "distillations-per_class-5", "distillations-per_class-20"]
    assert [table.name for table in tables] == names
    assert tables[1].title == "Distillations (5 a class)"
    key = "steps_1_average_incremental_accuracy"
    for table, run in zip(tables, runs.values(), strict=True):
        assert cells(table, 0)[key] == Summary(average(run), None, 1)
    assert cells(tables[0], 0)[f"{key}_paper"] == pytest.approx(0.6573)
    for table in tables[1:]:
        assert not any("paper" in column.key or "gap" in column.key for column in table.columns)


def test_values_that_the_file_lacks_are_none_of_the_papers(tmp_path: Path) -> None:
    points = {}
    for size in (5, 7):
        point = {"method.name": "gkd", "scenario.order": 1, "memory.per_class": size}
        points[write_run(tmp_path, *(f"{key}={value}" for key, value in point.items()))] = point
    _, (own, other) = read(tmp_path, write_sweep(tmp_path, "orders", ORDERS, points))
    assert cells(own, 0)["mean_paper"] == pytest.approx(0.6649)
    assert "mean_paper" not in cells(other, 0)


def test_a_value_that_the_files_settings_have_is_the_papers(tmp_path: Path) -> None:
    _, folder = added(tmp_path, "memory.per_class", (5, 20))
    append(folder / "experiment.toml", "[settings]\nmemory.per_class = 20\n")
    _, (_, few, many) = read(tmp_path, folder)
    key = "steps_1_average_incremental_accuracy_paper"
    assert key not in cells(few, 0)
    assert cells(many, 0)[key] == pytest.approx(0.6573)


def test_the_paper_is_not_beside_groups_with_an_axis_that_the_file_lacks(tmp_path: Path) -> None:
    _, folder = added(tmp_path, "data.source", ("cifar10", "npz:some.npz"))
    found = find_runs([tmp_path])
    groups, _ = group_runs(found.runs)
    targets = targets_of([read_sweep(folder, found)], groups)
    assert len(groups) == 3
    assert {each.protocol.data: value for each, value in targets.items()} == {"digits": 0.6573}


def test_a_path_as_a_value_is_no_path_of_a_table(tmp_path: Path) -> None:
    _, folder = added(tmp_path, "data.source", ("npz:../a/some.npz",))
    _, (_, table) = read(tmp_path, folder)
    assert table.name == "distillations-source-npz-..-a-some.npz"


def test_what_failed_is_counted(tmp_path: Path) -> None:
    points = {write_run(tmp_path, "method.name=gkd"): {"method.name": "gkd", "scenario.steps": 5}}
    points[tmp_path / "gone"] = {"method.name": "rdkd", "scenario.steps": 5}
    folder = write_sweep(tmp_path, "some", DISTILLATIONS, points)
    each, (table,) = read(tmp_path, folder)
    assert each.progress == "1 of 2 runs finished, 1 failed"
    assert each.entries[1].reason == "the disk is full."
    assert cells(table, 1)["steps_5_average_incremental_accuracy"] is None


def test_compressions_have_tables_too(tmp_path: Path) -> None:
    result = {"kind": "compression", "method": "kd", "teacher": "a", "student": "resnet8"}
    folder = tmp_path / "compress-kd-1"
    facts = {"accuracy": 0.75, "epochs": [], "config": {"epochs": 3}}
    rewrite(folder / "result.json", {**result, **facts})
    point = {folder: {"method": "kd", "student": "resnet8"}}
    _, (table,) = read(tmp_path, write_sweep(tmp_path, "small", COMPRESSION, point))
    row = cells(table, 0)
    assert row["student_resnet8_accuracy"] == Summary(0.75, None, 1)
    assert row["student_resnet8_accuracy_paper"] == pytest.approx(0.7516)
    assert row["schedule"] == "shortened to 3 epochs"


def test_a_sweep_is_a_place_of_its_own(tmp_path: Path) -> None:
    _, folder = distillations(tmp_path)
    write_run(tmp_path, "method.name=tkd")
    found = find_runs([folder])
    assert len(found.runs) == 8
    assert found.sweeps == (folder,)


def test_times_over_orders_are_times(tmp_path: Path) -> None:
    point = {"method.name": "gkd", "scenario.order": 1}
    run = write_run(tmp_path, "method.name=gkd", "scenario.order=1")
    text = 'measure = "seconds"\n' + ORDERS.partition("[paper")[0]
    _, (table,) = read(tmp_path, write_sweep(tmp_path, "times", text, {run: point}))
    (mean,) = [column for column in table.columns if column.key == "mean"]
    assert mean.kind == "seconds"
    assert cells(table, 0)["mean"] == pytest.approx(sum(1.5 + number for number in range(6)))
