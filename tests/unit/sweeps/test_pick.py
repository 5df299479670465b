import dataclasses
from pathlib import Path
from typing import Any

import pytest

from densekd.reports.experiments import read_sweep
from densekd.reports.runs import FoundRuns
from densekd.sweeps.experiment_file import Experiment, read_experiment
from densekd.sweeps.jobs import plan
from densekd.sweeps.pick import Pick, Trial, cell_of, pick_best
from densekd.sweeps.search import Parameter, Search
from densekd.sweeps.sweep import SweepObserver, SweepRecord, carry_out, sweep_folder

from support.scripted_pool import ScriptedPool, has_result

KEY = "method.options.temperature"
TEXT = f"""
title = "Temperatures"
about = "Which is best."

[settings]
data.validation = 0.2

[grid]
"method.name" = ["gkd", "rdkd"]
"scenario.steps" = [5]
seed = [1, 2]

[table]
rows = "method.name"
columns = "scenario.steps"

[search]
kind = "grid"
parameters = {{ "{KEY}" = [1.0, 2.0, 4.0] }}
"""


def experiment(tmp_path: Path, **changes: Any) -> Experiment:
    (tmp_path / "mine.toml").write_text(TEXT)
    read = read_experiment(tmp_path / "mine.toml")
    assert read.search is not None
    return dataclasses.replace(read, search=dataclasses.replace(read.search, **changes))


def tasks(point: Any) -> int:
    return int(point.get("scenario.first", 6))


def script(point: Any) -> tuple[list[float], float]:
    """2 is best on validation images and worst on test images, of gkd; of rdkd it is 4."""
    temperature = point[KEY]
    best = {"gkd": 2.0, "rdkd": 4.0}[point["method.name"]]
    held = 0.9 if temperature == best else 0.5 + temperature / 100
    test = 0.1 if temperature == best else 0.99
    return [held] * tasks(point), test + point["seed"] / 100


def sweep(made: Experiment, out: Path, pool: ScriptedPool) -> SweepRecord:
    planned = plan(made, out)
    with sweep_folder(planned):
        record = SweepRecord(planned, has_result)
        assert carry_out(record, pool, SweepObserver())
    return record


def test_the_best_mean_over_seeds_is_picked_for_each_cell() -> None:
    def trial(method: str, seed: int, value: int, held: float | None) -> Trial:
        return Trial({"method.name": method, "seed": seed, "x": value}, held)

    trials = [
        *(trial("a", 1, 1, 0.9), trial("a", 2, 1, 0.1)),
        *(trial("a", 1, 2, 0.6), trial("a", 2, 2, 0.6)),
        *(trial("a", 1, 3, 1.0), trial("a", 2, 3, None)),  # one failed
        *(trial("b", 1, 1, 0.5), trial("b", 1, 2, 0.5)),  # the first of equal ones
        trial("c", 1, 1, None),
    ]
    assert pick_best(trials, ["x"]) == [
        Pick({"method.name": "a"}, {"x": 2}, 0.6, 3),
        Pick({"method.name": "b"}, {"x": 1}, 0.5, 2),
    ]
    point = {"method.name": "a", "seed": 1, "x": 3, "scenario.first": 2}
    assert cell_of(point, ["x"]) == {"method.name": "a"}


@pytest.mark.parametrize("first", [None, 3])
def test_values_are_picked_by_validation_where_test_disagrees(
    first: int | None, tmp_path: Path
) -> None:
    pool = ScriptedPool(script)
    record = sweep(experiment(tmp_path, tasks=first), tmp_path / "runs", pool)
    picked = {pick.cell["method.name"]: pick.values[KEY] for pick in record.picks}
    assert picked == {"gkd": 2.0, "rdkd": 4.0}
    assert [pick.trials for pick in record.picks] == [3, 3]
    # By the first tasks, the picks are run again, through all tasks.
    assert len(pool.started) == (12 if first is None else 16)
    shown = [job for job in record.sweep.jobs if record.is_pick(job)]
    assert len(shown) == 4
    assert all("scenario.first" not in job.point for job in shown)
    assert {(job.point["method.name"], job.point[KEY]) for job in shown} == set(picked.items())
    # Repeating it picks the same, without a run.
    again = ScriptedPool(script)
    assert sweep(experiment(tmp_path, tasks=first), tmp_path / "runs", again).picks == record.picks
    assert again.started == []

    results = read_sweep(record.sweep.folder, FoundRuns((), (), ()))
    assert list(results.picks) == record.picks
    points = [{**job.point} for job in shown]
    assert [e.point for e in results.entries] == [
        {key: value for key, value in point.items() if key != KEY} for point in points
    ]
    assert len(results.trials) == len(record.sweep.jobs) - 4


def test_a_failed_trial_is_not_picked_and_the_others_are_compared(tmp_path: Path) -> None:
    def fails(point: Any) -> tuple[list[float], float]:
        return ([], 0.0) if point[KEY] == 2.0 else script(point)

    record = sweep(experiment(tmp_path), tmp_path / "runs", ScriptedPool(fails))
    picked = {pick.cell["method.name"]: pick.values[KEY] for pick in record.picks}
    assert picked == {"gkd": 4.0, "rdkd": 4.0}
    assert [record.entry(job)["state"] for job in record.sweep.jobs].count("failed") == 4


def test_axes_of_the_grid_become_hyper_parameters() -> None:
    made = Experiment(
        *("mine", "Mine", "About.", "runs", "average_incremental_accuracy", {}),
        {"method.name": ("gkd",), "scenario.steps": (5,), "seed": (1, 2), KEY: (1.0, 2.0)},
        *((), "method.name", "scenario.steps", False, ()),
    )
    picked = made.with_pick([KEY], tasks=3)
    assert picked.search == Search("grid", {KEY: Parameter((1.0, 2.0))}, tasks=3)
    assert picked.points() == made.points()
    assert made.with_pick([]) is made
    with pytest.raises(ValueError, match="seed is not an axis that can be picked; there are"):
        made.with_pick("seed")
    with pytest.raises(ValueError, match="say of what by --pick KEY"):
        made.with_pick([], tasks=3)
    drawn = dataclasses.replace(picked, search=Search("random", {"x": Parameter((1,))}, trials=2))
    with pytest.raises(ValueError, match="The search of mine is random; leave --pick out"):
        drawn.with_pick(["seed"])
    with pytest.raises(ValueError, match="is searched; change it in the section search"):
        picked.with_axes([f"{KEY}=1,2"])


def test_a_search_needs_validation_images(tmp_path: Path) -> None:
    without = dataclasses.replace(experiment(tmp_path), settings={})
    with pytest.raises(ValueError, match=r"a search picks by validation images.*--validation 0.1"):
        plan(without, tmp_path)
    with pytest.raises(ValueError, match="first 7 of 6 tasks"):
        plan(experiment(tmp_path, tasks=7), tmp_path)
    with pytest.raises(ValueError, match=r"is what search\.tasks sets"):
        plan(experiment(tmp_path, tasks=2).with_axes(["scenario.first=1,2"]), tmp_path)
    with pytest.raises(ValueError, match=r"scenario\.first .* leave it out of the grid"):
        plan(experiment(tmp_path).with_axes(["scenario.first=1,2"]), tmp_path)
    with pytest.raises(ValueError, match="is an axis of mine"):
        plan(experiment(tmp_path), tmp_path, {"method": {"options": {"temperature": 3.0}}})


def test_tuning_on_test_images_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = dataclasses.replace(experiment(tmp_path), search=None, settings={})
    plan(plain, tmp_path)
    assert not caplog.records
    tuned = plain.with_axes([f"{KEY}=1,2"])
    plan(tuned, tmp_path, {"data": {"validation": 0.1}})
    assert not caplog.records
    plan(tuned, tmp_path)
    assert "you tune on the test images" in caplog.text
    assert f"--pick {KEY}" in caplog.text
