"""Runs that hold out validation images: what they train on, keep, measure and say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from densekd.cli import app
from densekd.config.schema import Config, resolve
from densekd.config.settings_tree import merge
from densekd.data.batches import Batches
from densekd.data.dataset import Dataset, PixelImages, Split
from densekd.reports.runs import find_runs
from densekd.runs.build import make_scenario
from densekd.runs.loaded import load_run
from densekd.runs.observer import RunObserver
from densekd.runs.run import run_config
from densekd.training.callbacks import Stopped

SHORT = {
    "network": "resnet8",
    "data": {"per_class": 12, "validation": 0.25},
    "scenario": {"base": 4, "steps": 2},
    "training": {"base": {"epochs": 1}, "increment": {"epochs": 1}},
}


def short(method: str = "gkd", **changes: Any) -> Config:
    return resolve(merge(SHORT, {"method": {"name": method}}, changes))


def pixels(*splits: Split) -> set[bytes]:
    found = set()
    for split in splits:
        assert isinstance(split.images, PixelImages)
        found |= {image.numpy().tobytes() for image in split.images.pixels}
    return found


def validation_of(dataset: Dataset) -> set[bytes]:
    assert dataset.validation is not None
    return pixels(dataset.validation)


def without_clock(result: Any) -> list[dict[str, Any]]:
    passing = ("seconds", "images_per_second")
    return [{k: v for k, v in step.items() if k not in passing} for step in result["steps"]]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rdkd", "icarl", "bic", "ccil", "joint"])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_validation_image_is_trained_on_or_kept(
    method: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: set[bytes] = set()
    usual = Batches.__init__

    def noted(self: Batches, split: Split, *args: Any, **options: Any) -> None:
        trained.update(pixels(split))
        usual(self, split, *args, **options)

    monkeypatch.setattr(Batches, "__init__", noted)
    config = short(method, seed=seed, epochs=1, data={"test_per_class": 10})
    result = run_config(config, tmp_path)
    dataset = make_scenario(config).dataset
    assert dataset.validation is not None
    assert len(dataset.validation) == 3 * 10
    assert len(dataset.train) == 9 * 10
    held = validation_of(dataset)
    assert len(held) == 30
    assert trained
    assert trained <= pixels(dataset.train)
    assert not trained & held
    kept = pixels(load_run(Path(result["folder"])).learner().memory.exemplars())
    assert not kept & held
    assert not kept & pixels(dataset.test)


@pytest.mark.slow
def test_a_run_measures_on_validation_images_too_and_resumes_to_the_same(tmp_path: Path) -> None:
    result = run_config(short(), tmp_path / "whole")
    seen = [step["classes_seen"] for step in result["steps"]]
    assert seen == [4, 7, 10]
    for step in result["steps"]:
        # Three validation images a class.
        right = step["validation"]["accuracy"] * 3 * step["classes_seen"]
        assert right == pytest.approx(round(right))
        assert len(step["validation"]["task_accuracies"]) == step["number"] + 1
    mean = sum(step["validation"]["accuracy"] for step in result["steps"]) / 3
    assert result["validation"]["average_incremental_accuracy"] == pytest.approx(mean)
    assert result["validation"]["forgetting"] is not None

    class StopsAfterEachTask(RunObserver):
        learned = False

        def evaluated(self, record: object) -> None:
            self.learned = True

        def stop(self) -> bool:
            return self.learned

    stops = 0
    while True:
        try:
            resumed = run_config(short(), tmp_path / "stopped", StopsAfterEachTask())
            break
        except Stopped:
            stops += 1
    assert stops == 2
    assert without_clock(resumed) == without_clock(result)
    assert resumed["validation"] == result["validation"]


@pytest.mark.slow
def test_only_the_first_tasks_are_learned_and_as_in_the_whole_run(tmp_path: Path) -> None:
    whole = run_config(short(), tmp_path)
    cut = run_config(short(scenario={"first": 2}), tmp_path)
    assert cut["folder"] != whole["folder"]
    assert without_clock(cut) == without_clock(whole)[:2]
    assert len(list((tmp_path / "bases").iterdir())) == 1
    assert len(load_run(Path(cut["folder"])).scenario) == 2
    labels = {run.protocol.label for run in find_runs([tmp_path]).runs}
    held = "digits, 12 images a class, 25 % held out · T = 2 after 4 classes"
    memory = " · 20 exemplars a class"
    assert labels == {f"{held}{memory}", f"{held}, first 2 tasks{memory}"}


@pytest.mark.slow
def test_commands_show_the_accuracy_on_validation_images(tmp_path: Path) -> None:
    small = ["--validation", "0.25", "-o", "data.per_class=12", "-o", "network=resnet8"]
    out = ["--out", str(tmp_path / "runs")]
    made = CliRunner().invoke(app, ["run", "--epochs", "1", "--steps", "1", *small, *out, "--json"])
    assert made.exit_code == 0, made.output
    result = json.loads(made.stdout)
    for step in result["steps"]:
        assert f"validation {100 * step['validation']['accuracy']:.1f} %" in made.stderr
    mean = 100 * result["validation"]["average_incremental_accuracy"]
    assert f"On validation images: {mean:.1f} %" in made.stderr
    assert "validation %" in made.stderr
    report = CliRunner().invoke(app, ["report", *out[1:], "--out", str(tmp_path / "report")])
    assert report.exit_code == 0, report.output
    table = (tmp_path / "report" / "tables" / "comparison.md").read_text("utf-8")
    assert "| validation |" in table
    assert f"| {mean:.2f} |" in table


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data.validation must be a number from 0 to below 1"):
        resolve({"data": {"validation": 1.0}})
    refused = CliRunner().invoke(app, ["compress", "-o", "data.validation=0.1"])
    assert refused.exit_code == 2
    assert "data.validation has no meaning for a compression" in refused.output


def test_the_images_that_stay_keep_their_order() -> None:
    """The images that stay are those of the run without validation, in the same order."""
    plain = make_scenario(short(data={"validation": 0.0}))
    cut = make_scenario(short())
    assert cut.dataset.validation is not None
    assert plain.order == cut.order
    for whole, part in zip(plain, cut, strict=True):
        assert part.validation is not None
        held = pixels(part.validation)
        assert isinstance(whole.train.images, PixelImages)
        assert isinstance(part.train.images, PixelImages)
        stay = [x.numpy().tobytes() not in held for x in whole.train.images.pixels]
        assert torch.equal(whole.train.images.pixels[stay], part.train.images.pixels)
