from pathlib import Path

import pytest

from densekd.config.schema import resolve
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.runs.run import load_run, read_config, run_config, run_folder
from densekd.training.callbacks import Stopped
from densekd.training.evaluate import evaluate

CONFIG = resolve(
    {
        "network": "resnet8",
        "data": {"per_class": 10},
        "scenario": {"base": 4, "steps": 2},
        "method": {"name": "gkd"},
        "training": {"base": {"epochs": 1}, "increment": {"epochs": 1}},
    }
)


class Until(RunObserver):
    """Stops as soon as so many tasks are learned."""

    def __init__(self, tasks: int) -> None:
        self.left = tasks

    def evaluated(self, record: StepRecord) -> None:
        self.left -= 1

    def stop(self) -> bool:
        return self.left <= 0


def stopped(out: Path, tasks: int) -> Path:
    """The folder of a run that was stopped after so many tasks."""
    with pytest.raises(Stopped):
        run_config(CONFIG, out, Until(tasks))
    return run_folder(CONFIG, out)


def test_a_finished_run_is_there_again(tmp_path: Path) -> None:
    result = run_config(CONFIG, tmp_path)
    config, scenario, learner = load_run(Path(result["folder"]))
    assert config == CONFIG
    assert learner.sizes == scenario.sizes == (4, 3, 3)
    assert learner.classes == scenario.classes
    for task, accuracy in zip(scenario, result["accuracy_matrix"][-1], strict=True):
        labels = evaluate(learner, task.test).head
        assert labels.trace() / labels.sum() == accuracy


def test_an_unfinished_run_is_there_as_far_as_it_went(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tasks=2)
    assert load_run(folder).learner.sizes == (4, 3)


def test_a_run_that_learned_nothing(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tasks=0)
    with pytest.raises(ValueError, match=r"no task yet.*`densekd run`"):
        load_run(folder)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not the folder of a run.*`densekd run`"):
        read_config(tmp_path)
