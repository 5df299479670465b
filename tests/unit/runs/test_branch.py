"""Going on from a step of another run."""

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

from densekd.config.schema import Config, as_toml, resolve
from densekd.files import write_sealed_json, write_sealed_text
from densekd.runs.loaded import LoadedRun, load_run
from densekd.runs.observer import RunObserver
from densekd.runs.run import run_config, run_folder
from densekd.training.callbacks import Stopped, TrainingProgress

SETTINGS = {
    "network": "resnet8",
    "data": {"per_class": 12},
    "scenario": {"base": 4, "steps": 3},
    "memory": {"per_class": 4},
    "epochs": 2,
    "keep_steps": True,
}


@cache
def parent(method: str) -> LoadedRun:
    """A finished run of four steps."""
    config = resolve({**SETTINGS, "method": {"name": method}})
    return load_run(run_config(config, Path(mkdtemp()))["folder"])


def branch(of: LoadedRun, step: int, **changes: Any) -> Config:
    return resolve({"start": f"{of.folder}@{step}", **changes})


def learned(folder: Path | str) -> dict[str, torch.Tensor]:
    return load_run(folder).learner().state().tensors


@pytest.mark.parametrize("method", ["rdkd", "rdkd-adaptive", "afc", "bic", "icarl"])
def test_the_same_method_gives_the_same_bits(method: str, tmp_path: Path) -> None:
    before = parent(method)
    result = run_config(branch(before, 2), tmp_path)
    assert before.result is not None
    different = {"seconds", "images_per_second"}
    for step, original in zip(result["steps"], before.result["steps"], strict=True):
        assert {k: x for k, x in step.items() if k not in different} == {
            k: x for k, x in original.items() if k not in different
        }
    for key in ("average_incremental_accuracy", "forgetting", "confusion_matrix"):
        assert result[key] == before.result[key]
    weights = learned(result["folder"])
    originals = before.learner().state().tensors
    assert weights.keys() == originals.keys()
    assert all(torch.equal(weights[name], originals[name]) for name in weights)


def test_a_branch_has_a_folder_of_its_own(tmp_path: Path) -> None:
    before = parent("rdkd")
    folders = {
        run_folder(config, tmp_path)
        for config in (
            before.config,
            branch(before, 1),
            branch(before, 2),
            branch(before, 2, method={"name": "gkd"}),
        )
    }
    assert len(folders) == 4
    moved = tmp_path / "moved"
    shutil.copytree(before.folder, moved)
    elsewhere = branch(load_run(moved), 2)
    assert run_folder(elsewhere, tmp_path) == run_folder(branch(before, 2), tmp_path)


@pytest.mark.parametrize(
    ("before", "after"),
    [("rdkd", "gkd"), ("gkd", "rdkd-adaptive"), ("podnet", "afc"), ("rdkd", "finetune")],
)
def test_another_method_goes_on(before: str, after: str, tmp_path: Path) -> None:
    original = parent(before)
    result = run_config(branch(original, 2, method={"name": after}), tmp_path)
    assert original.result is not None
    assert result["steps"][:2] == original.result["steps"][:2]
    assert result["steps"][2:] != original.result["steps"][2:]
    loaded = load_run(result["folder"])
    assert loaded.config.method.name == after
    assert loaded.kept_steps == (2, 3, 4)
    for step in (1, 2):
        theirs, ours = original.predictions(step).scores, loaded.predictions(step).scores
        assert (theirs == ours).all()


class StopIn(RunObserver):
    """Stops within the first epoch of a task."""

    def __init__(self, task: int) -> None:
        self.task, self.reached = task, False

    def report(self, report: TrainingProgress) -> None:
        self.reached = report.task == self.task

    def stop(self) -> bool:
        return self.reached


def test_a_stopped_branch_resumes_without_its_parent(tmp_path: Path) -> None:
    copied = tmp_path / "parent"
    shutil.copytree(parent("rdkd").folder, copied)
    config = branch(load_run(copied), 2, method={"name": "gkd"})
    straight = run_config(config, tmp_path / "straight")
    with pytest.raises(Stopped):
        run_config(config, tmp_path / "stopped", StopIn(2))
    shutil.rmtree(copied)
    folder = run_folder(config, tmp_path / "stopped")
    resumed = run_config(load_run(folder).config, tmp_path / "stopped")
    assert resumed["folder"] == str(folder)
    assert resumed["confusion_matrix"] == straight["confusion_matrix"]
    ours, theirs = learned(folder), learned(straight["folder"])
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_branch_of_a_branch(tmp_path: Path) -> None:
    first = load_run(run_config(branch(parent("rdkd"), 2), tmp_path)["folder"])
    second = load_run(run_config(branch(first, 3), tmp_path)["folder"])
    assert second.folder != first.folder
    assert (second.confusion(4) == parent("rdkd").confusion(4)).all()


def test_a_smaller_memory_drops_exemplars(tmp_path: Path) -> None:
    result = run_config(branch(parent("rdkd"), 3, memory={"per_class": 2}), tmp_path)
    memory = load_run(result["folder"]).learner(3).memory
    assert len(memory) == 2 * memory.classes


@pytest.mark.parametrize(
    ("step", "changes", "sentence"),
    [
        (4, {}, "has 4 steps, so nothing is left to learn after step 4"),
        (5, {}, "steps 1 to 4.* no step 5"),
        (2, {"method": {"name": "podnet"}}, "podnet has the head 'proxies'.*rdkd.*'cosine'"),
        (2, {"method": {"name": "joint"}}, "joint replays all images.*rdkd kept only exemplars"),
    ],
)
def test_what_a_branch_can_not_do(
    step: int, changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        run_config(branch(parent("rdkd"), step, **changes), tmp_path)


def test_a_step_that_was_not_kept(tmp_path: Path) -> None:
    copied = tmp_path / "parent"
    shutil.copytree(parent("rdkd").folder, copied)
    for file in (copied / "learner").glob("000001*"):
        file.unlink()
    with pytest.raises(ValueError, match=r"no learner of step 2, only of 1, 3, 4; .*--keep-steps"):
        run_config(branch(load_run(copied), 2), tmp_path)


def test_another_run_in_the_place_of_the_parent(tmp_path: Path) -> None:
    copied = tmp_path / "parent"
    shutil.copytree(parent("rdkd").folder, copied)
    config = branch(load_run(copied), 2)
    other = replace(load_run(copied).config, epochs=3)
    write_sealed_text(copied / "config.toml", as_toml(other))
    with pytest.raises(ValueError, match="parent has other settings than the run that this one"):
        run_config(config, tmp_path)


def test_data_that_changed(tmp_path: Path) -> None:
    before = parent("rdkd")
    state = before.state(2)
    copied = tmp_path / "parent"
    shutil.copytree(before.folder, copied)
    state.facts["learner"]["classes"].reverse()
    load_run(copied)._learned.save(1, state)
    with pytest.raises(ValueError, match="learned other classes than its data has now"):
        run_config(branch(load_run(copied), 2), tmp_path)


def test_files_that_changed_since_the_parent_began(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (40, 8, 8), np.uint8)
    labels = np.arange(40) % 4
    file = tmp_path / "images.npz"

    def write(step: int) -> None:
        np.savez(file, train_x=images[::step], train_y=labels, test_x=images, test_y=labels)

    write(1)
    settings = {
        **SETTINGS,
        "data": {"source": f"npz:{file}"},
        "scenario": {"steps": 1},
        "epochs": 1,
    }
    before = load_run(run_config(resolve(settings), tmp_path)["folder"])
    config = branch(before, 1, method={"name": "finetune"})
    write(-1)
    with pytest.raises(ValueError, match=r"images.npz has changed since .* learned its steps"):
        run_config(config, tmp_path)
    write(1)
    done = run_config(config, tmp_path)
    # The parent was deleted, and made again with another file.
    code = before.folder / "code.json"
    write_sealed_json(code, {f"npz:{file}": "0" * 64})
    with pytest.raises(ValueError, match=r"images.npz has changed since this run began"):
        run_config(config, tmp_path)
    shutil.rmtree(before.folder)
    assert run_config(config, tmp_path) == done
