import json
from pathlib import Path

import numpy as np
import pytest

from densekd.reports.charts import Chart, draw_figures
from densekd.reports.figures import charts, compression_charts, heat_maps
from densekd.reports.groups import group_compressions, group_runs
from densekd.reports.runs import find_runs

from support.run_folders import rewrite, write_run


def drawn(out: Path) -> list[Chart]:
    groups, _ = group_runs(find_runs([out]).runs)
    return list(charts(groups))


def result(folder: Path) -> dict[str, list[dict[str, float]]]:
    content: dict[str, list[dict[str, float]]] = json.loads((folder / "result.json").read_text())
    return content


def test_curves_are_means_over_runs(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, f"seed={seed}") for seed in (1, 2, 3)]
    found = {chart.title: chart for chart in drawn(tmp_path)}
    assert {chart.section for chart in found.values()} == {"curves", "stability"}
    (curve,) = found["All classes seen, after each task"].series
    steps = np.array([[step["accuracy"] for step in result(f)["steps"]] for f in folders])
    assert [p.x for p in curve.points] == [5, 6, 7, 8, 9, 10]
    assert [p.y for p in curve.points] == pytest.approx(100 * steps.mean(0))
    assert [p.spread for p in curve.points] == pytest.approx(100 * steps.std(0, ddof=1))
    (old,) = found["Classes of earlier tasks, after each task"].series
    assert [p.x for p in old.points] == [6, 7, 8, 9, 10]  # there are none before
    (bars,) = found["Old and new classes after the last task"].series
    last = [result(f)["steps"][-1]["new_accuracy"] for f in folders]
    assert bars.points[1].y == pytest.approx(100 * np.mean(last))


def test_an_unfinished_run_is_drawn_as_such_where_no_other_is(tmp_path: Path) -> None:
    write_run(tmp_path, "method.name=gkd", "seed=1")
    write_run(tmp_path, "method.name=gkd", "seed=2", tasks=3)
    write_run(tmp_path, "method.name=rdkd", tasks=3)
    write_run(tmp_path, "method.name=tkd", tasks=0)
    curves = {series.method: series for series in drawn(tmp_path)[0].series}
    assert {m: (s.finished, len(s.points)) for m, s in curves.items()} == {
        "gkd": (True, 6),
        "rdkd": (False, 3),
    }
    assert {point.spread for point in curves["gkd"].points} == {None}
    maps = heat_maps(group_runs(find_runs([tmp_path]).runs)[0])
    assert [(m.method, m.finished, len(m.values)) for m in maps] == [
        ("gkd", True, 6),
        ("rdkd", False, 3),
    ]


def test_heat_maps_are_accuracy_matrices(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "scenario.steps=1")
    (heat,) = heat_maps(group_runs(find_runs([tmp_path]).runs)[0])
    matrix: list[list[float]] = result(folder)["accuracy_matrix"]  # type: ignore[assignment]
    assert heat.values[0] == (100 * matrix[0][0],)
    assert heat.values[1] == pytest.approx([100 * value for value in matrix[1]])


def test_memory_is_compared_over_the_same_draws(tmp_path: Path) -> None:
    for size in (5, 20):
        write_run(tmp_path, f"memory.per_class={size}", "seed=1")
    write_run(tmp_path, "memory.per_class=20", "seed=2")
    write_run(tmp_path, "memory.per_class=20", "method.name=gkd")
    (chart,) = [chart for chart in drawn(tmp_path) if chart.section == "memory"]
    assert chart.protocol == "digits · T = 5"
    (line,) = chart.series  # the other method has one size only
    assert [point.x for point in line.points] == [5, 20]
    assert line.points[0].y == line.points[1].y  # of the same seed
    assert line.points[1].spread is None


def test_orders_are_those_that_all_methods_have(tmp_path: Path) -> None:
    for order in (1, 2, 10):
        write_run(tmp_path, f"scenario.order={order}", "method.name=gkd")
    for order in (1, 2):
        write_run(tmp_path, f"scenario.order={order}")
    write_run(tmp_path, "method.name=tkd")
    (chart,) = [chart for chart in drawn(tmp_path) if chart.section == "orders"]
    assert chart.categories == ("order 1", "order 2")
    assert {series.method for series in chart.series} == {"gkd", "rdkd"}
    assert all(len(series.points) == 2 for series in chart.series)


def test_flatness_is_a_mean_over_draws_and_runs(tmp_path: Path) -> None:
    losses = {1: [[1.0, 1.0], [2.0, 4.0]], 2: [[3.0, 3.0], [5.0, 7.0]]}
    for seed, values in losses.items():
        folder = write_run(tmp_path, f"seed={seed}")
        flat = {"sigmas": [0.0, 0.01], "draws": 2, "images": 9, "losses": values}
        rewrite(folder / "flatness.json", flat)
    loss, rise = [chart for chart in drawn(tmp_path) if chart.section == "flatness"]
    assert [(p.x, p.y) for p in loss.series[0].points] == [(0.0, 2.0), (0.01, 4.5)]
    assert [(p.x, p.y) for p in rise.series[0].points] == [(0.0, 0.0), (0.01, 2.5)]


def test_compressions_have_their_losses(tmp_path: Path) -> None:
    facts = {"kind": "compression", "teacher": "a", "student": "b", "accuracy": 0.5}
    epochs = [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}]
    for method in ("kd", "rdkd"):
        content = {**facts, "method": method, "epochs": epochs}
        rewrite(tmp_path / f"compress-{method}" / "result.json", content)
    (chart,) = compression_charts(group_compressions(find_runs([tmp_path]).compressions))
    assert [series.method for series in chart.series] == ["kd", "rdkd"]
    assert [(p.x, p.y) for p in chart.series[0].points] == [(1, 2.0), (2, 1.0)]


def test_figures_are_the_same_each_time(tmp_path: Path) -> None:
    write_run(tmp_path, "scenario.steps=1", "data.source=npz:$_{<b>.npz")
    write_run(tmp_path, "scenario.steps=1", "data.source=npz:$_{<b>.npz", "seed=1")
    found = drawn(tmp_path)
    some = [chart for chart in found if chart.section == "stability"][-2:]
    once = draw_figures(some, {"rdkd": 12})
    assert once == draw_figures(some, {"rdkd": 12})
    assert once["pdf"].startswith(b"%PDF")
    assert once["png"].startswith(b"\x89PNG")
    maps = draw_figures(list(heat_maps(group_runs(find_runs([tmp_path]).runs)[0])), {"rdkd": 0})
    assert maps["pdf"].startswith(b"%PDF")
