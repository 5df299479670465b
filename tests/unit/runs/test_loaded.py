from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from densekd.config.schema import as_tree, resolve
from densekd.config.settings_tree import override
from densekd.data.dataset import join_images
from densekd.metrics import confusion_matrix
from densekd.runs.loaded import evaluations_of, load_run
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.runs.run import run_config, run_folder
from densekd.training.callbacks import Stopped
from densekd.training.checkpoint import Checkpoints, State
from densekd.training.evaluate import evaluate

from support.run_folders import write_run

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
    loaded = load_run(result["folder"])
    assert loaded.config == CONFIG
    assert dict(loaded.result or {}) == result
    assert [record.number for record in loaded.steps] == [0, 1, 2]
    assert loaded.kept_steps == (2, 3)
    assert loaded.confusion(3).tolist() == result["confusion_matrix"]
    assert loaded.confusion(1).sum() == loaded.confusion(3)[:4].sum()
    learner, scenario = loaded.learner(), loaded.scenario
    assert learner.sizes == scenario.sizes == (4, 3, 3)
    assert learner.classes == scenario.classes
    for task, accuracy in zip(scenario, result["accuracy_matrix"][-1], strict=True):
        labels = evaluate(learner, task.test).head
        assert labels.trace() / labels.sum() == accuracy


def test_every_step_is_kept_if_asked(tmp_path: Path) -> None:
    usual = run_config(CONFIG, tmp_path / "usual")
    kept = run_config(replace(CONFIG, keep_steps=True), tmp_path / "kept")
    assert Path(kept["folder"]).name == Path(usual["folder"]).name
    assert kept["accuracy_matrix"] == usual["accuracy_matrix"]
    loaded = load_run(kept["folder"])
    assert loaded.kept_steps == (1, 2, 3)
    for step, seen in enumerate((4, 7, 10), 1):
        labels, predicted, scores, classes = loaded.predictions(step)
        matrix = confusion_matrix(torch.from_numpy(predicted), torch.from_numpy(labels), seen)
        assert (matrix == loaded.confusion(step)).all()
        assert (scores.argmax(1) == predicted).all()
        assert scores.dtype == np.float32
        learner = loaded.learner(step)
        assert tuple(classes) == learner.classes == loaded.scenario.classes[:seen]
        tests = [task.test.images for task in loaded.scenario[:step]]
        assert np.allclose(learner.scores(join_images(tests)).numpy(), scores, atol=1e-5)


def test_predictions_by_the_nearest_mean(tmp_path: Path) -> None:
    config = resolve(override(as_tree(CONFIG), ["method.name=icarl", "keep_steps=true"]))
    loaded = load_run(run_config(config, tmp_path)["folder"])
    for step in (1, 2, 3):
        predictions = loaded.predictions(step)
        matrix = np.zeros_like(loaded.confusion(step))
        np.add.at(matrix, (predictions.labels, predictions.predicted), 1)
        assert (matrix == loaded.confusion(step)).all()
        assert np.abs(predictions.scores).max() <= 1 + 1e-6  # cosines


def test_reading_a_result_reads_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_config(replace(CONFIG, keep_steps=True), tmp_path)["folder"]

    def refuse(*_: object) -> None:
        raise AssertionError("the data set was loaded")

    monkeypatch.setattr("densekd.runs.loaded.make_scenario", refuse)
    loaded = load_run(folder)
    assert loaded.result
    assert loaded.confusion(2).sum() == len(loaded.predictions(2).labels)
    assert loaded.learner(2).sizes == (4, 3)


def test_a_resumed_run_goes_on_keeping_its_steps(tmp_path: Path) -> None:
    config = replace(CONFIG, keep_steps=True)
    with pytest.raises(Stopped):
        run_config(config, tmp_path, Until(1))
    run_config(CONFIG, tmp_path)
    assert load_run(run_folder(CONFIG, tmp_path)).kept_steps == (1, 2, 3)


def test_an_unfinished_run_is_there_as_far_as_it_went(tmp_path: Path) -> None:
    loaded = load_run(stopped(tmp_path, tasks=2))
    assert loaded.result is None
    assert len(loaded.steps) == 2
    assert loaded.learner().sizes == (4, 3)


def test_a_run_that_learned_nothing(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tasks=0)
    with pytest.raises(ValueError, match=r"no task yet.*`densekd run`"):
        load_run(folder).learner()


def test_what_is_not_there(tmp_path: Path) -> None:
    loaded = load_run(run_config(CONFIG, tmp_path)["folder"])
    with pytest.raises(ValueError, match=r"no learner of step 1, only of 2, 3; .*--keep-steps"):
        loaded.learner(1)
    with pytest.raises(ValueError, match=r"no predictions of step 2; .*--keep-steps"):
        loaded.predictions(2)
    for step in (0, 4):
        with pytest.raises(ValueError, match=rf"steps 1 to 3.* no step {step}"):
            loaded.confusion(step)


def test_a_run_whose_data_has_other_classes_now_is_not_resumed(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tasks=1)
    state = load_run(folder).state(1)
    state.facts["learner"]["classes"].reverse()
    Checkpoints(folder / "learner").save(0, state)
    with pytest.raises(ValueError, match=r"learned other classes than its data has now.*--out"):
        run_config(CONFIG, tmp_path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs")
    (folder / "predictions").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="link out of"):
        load_run(folder)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not the folder of a run.*`densekd run`"):
        load_run(tmp_path)


@pytest.mark.parametrize("matrix", [torch.zeros(3, dtype=torch.int64), torch.zeros(4, 4), None])
def test_confusion_matrices_of_others(matrix: torch.Tensor | None) -> None:
    tensors = {} if matrix is None else {"confusion.0": matrix}
    with pytest.raises((ValueError, KeyError), match="confusion"):
        evaluations_of(State({"steps": [{"classes_seen": 4}]}, tensors))
