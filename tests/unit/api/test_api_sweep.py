"""`densekd.sweep` with Python values as parts."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import densekd
from densekd import CrossEntropy, Method, Phase, Schedules, Step, Term
from densekd.sweeps.work import start_pool

EXPERIMENT = """
title = "Values"
about = "Methods of this process."
[settings]
epochs = 1
scenario.steps = 1
memory.per_class = 2
[grid]
"method.name" = ["finetune"]
seed = [1]
[table]
rows = "method.name"
columns = "seed"
"""


def tiny() -> nn.Module:
    with Path("made.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())


def replay(schedules: Schedules) -> Method:
    terms = {"ce": CrossEntropy(["merged"], "all")}
    base, increment = Phase("train", schedules.base), Phase("train", schedules.increment)
    return Method("replay", "linear", terms, (base,), (increment,), streams="merged")


def smooth(schedules: Schedules) -> Method:
    return replay(schedules).with_term("ce", CrossEntropy(["merged"], "all", base_smoothing=0.1))


def broken(schedules: Schedules) -> Method:
    raise RuntimeError("out of ideas")


class Failing(Term):
    def __call__(self, step: Step) -> Tensor:
        raise RuntimeError("no gradient")


def failing(schedules: Schedules) -> Method:
    return replay(schedules).with_term("fails", Failing())


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    Path("values.toml").write_text(EXPERIMENT)
    labels = np.arange(40) % 4
    images = (
        np.random.default_rng(1).integers(0, 60, (40, 8, 8, 3)) + 60 * labels[:, None, None, None]
    )
    x = images.astype(np.uint8)
    return {"data": (x, labels, x, labels), "network": tiny, "quiet": True}


def made() -> list[str]:
    return Path("made.txt").read_text().split()


@pytest.mark.slow
def test_values_run_in_this_process_and_resume_by_what_they_are(values: dict[str, Any]) -> None:
    done = densekd.sweep("values.toml", grid={"method": ["finetune", replay]}, **values)
    assert done.labels == ["finetune seed=1", "replay seed=1"]
    assert done.failures == {}
    assert [len(run.steps) for run in done] == [2, 2]
    assert {*made()} == {str(os.getpid())}
    before = len(made())
    again = densekd.sweep("values.toml", grid={"method": ["finetune", replay]}, **values)
    assert [run.folder for run in again] == [run.folder for run in done]
    assert len(made()) == before
    other = densekd.sweep("values.toml", grid={"method": [smooth]}, **values)
    assert other[0].folder not in [run.folder for run in done]


@pytest.mark.slow
def test_a_value_that_fails_stops_no_other_run(values: dict[str, Any]) -> None:
    done = densekd.sweep("values.toml", grid={"method": [failing, "finetune"]}, **values)
    assert done.labels == ["finetune seed=1"]
    ((name, reason),) = done.failures.items()
    assert name == "failing seed=1"
    assert "Failing.__call__ can't be used: RuntimeError in line" in reason


def test_a_value_that_can_not_be_used_is_told_before_any_run(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="The method broken can't be used: RuntimeError in line"):
        densekd.sweep("values.toml", grid={"method": ["finetune", broken]}, **values)
    assert not Path("runs").exists()


def test_several_workers_have_no_values_of_this_process(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"one run at a time; leave workers and engine out"):
        densekd.sweep("values.toml", workers=2, **values)


def test_a_sweep_needs_workers_and_an_engine_that_there_is() -> None:
    with pytest.raises(ValueError, match="workers must be at least 1, not -1"):
        start_pool(-1)
    wrong: Any = "Ray"
    with pytest.raises(ValueError, match="engine='Ray' is not one of 'local', 'ray'"):
        start_pool(engine=wrong)


@pytest.mark.slow
def test_numbers_of_numpy_are_numbers(values: dict[str, Any]) -> None:
    done = densekd.sweep("values.toml", grid={"seed": [*np.arange(1, 3)]}, **values)
    assert [point["seed"] for point in done.points] == [1, 2]


@pytest.mark.slow
def test_a_path_is_a_value_of_the_grid(values: dict[str, Any]) -> None:
    done = densekd.sweep("values.toml", grid={"data_dir": [Path("there")]}, **values)
    assert [point["data.dir"] for point in done.points] == ["there"]
    assert done.failures == {}


@pytest.mark.slow
def test_nothing_and_tables_are_values_of_the_grid(values: dict[str, Any]) -> None:
    grid: Any = {"test_per_class": [5, None], "method.options": [{"head": "linear"}]}
    done = densekd.sweep("values.toml", grid=grid, **values)
    assert [point["data.test_per_class"] for point in done.points] == [5, None]
    assert done[1].settings["method"]["options"]["head"] == "linear"


@pytest.mark.parametrize("wrong", ["gkd", 5])
def test_the_grid_has_lists(wrong: object, values: dict[str, Any]) -> None:
    grid: Any = {"method": wrong}
    with pytest.raises(ValueError, match=r"a list of values for method\.name, not"):
        densekd.sweep("values.toml", grid=grid, **values)
