"""What users have survives an upgrade: folders that version 0.1.0 wrote, before the package moved.

They were written on a CPU with one thread; another processor may round otherwise, so whatever is
computed anew is compared with a tolerance, and only what is read is compared exactly.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from densekd import Learner
from densekd.config.schema import as_toml, resolve
from densekd.config.settings_tree import read_toml
from densekd.model.model import Model, history
from densekd.model.options import TeachOptions
from densekd.model.teach import teach_model
from densekd.runs.observer import RunObserver
from densekd.runs.run import run_config, run_folder
from densekd.runs.stored import read_result

from support.photos import fill

V1 = Path(__file__).parents[1] / "golden" / "v1"
INTERRUPTED = "digits-icarl+rdkd-038957497283"
FINISHED = "digits-gkd-1a7bd793e8a0"


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    """A copy to work on."""
    return Path(shutil.copytree(V1, tmp_path / "v1"))


def test_a_model_predicts_as_it_did(v1: Path, tmp_path: Path) -> None:
    expected = json.loads((v1 / "model-predictions.json").read_text())
    for counts in ({"red": 8, "green": 8, "blue": 8}, {"yellow": 8, "7": 8}):
        fill(tmp_path / "photos", counts)
        shutil.copytree(tmp_path / "photos", tmp_path / "all", dirs_exist_ok=True)
    model = Model.open(v1 / "model")
    guesses = model.predict([tmp_path / "all" / name for name in expected])
    assert len(guesses) == 40
    for (best,), (name, probability) in zip(guesses, expected.values(), strict=True):
        assert best.name == name
        assert best.probability == pytest.approx(probability, abs=1e-4)


def test_a_model_can_be_taught_more(v1: Path, tmp_path: Path) -> None:
    source = fill(tmp_path / "more", {"dark blue é": 8})
    update = teach_model(v1 / "model", source, TeachOptions(epochs=1))
    assert (update.step, update.learned) == (2, ("dark blue é",))
    assert [entry.update.learned for entry in history(v1 / "model")[:2]] == [
        ("blue", "green", "red"),
        ("7", "yellow"),
    ]
    assert Model.open(v1 / "model").classes == (
        "blue",
        "green",
        "red",
        "7",
        "yellow",
        "dark blue é",
    )


def test_a_learner_predicts_as_it_did_and_learns_more(v1: Path) -> None:
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16
    learner = Learner.load(v1 / "learner")
    expected = json.loads((v1 / "learner-probabilities.json").read_text())
    np.testing.assert_allclose(learner.predict_proba(images[:5]), expected, atol=1e-4)
    new = labels == 9
    learner.partial_fit(images[new][:20], labels[new][:20])
    assert learner.sizes == (4, 3, 1)


def test_an_interrupted_run_goes_on_in_its_own_folder(v1: Path) -> None:
    before = json.loads((v1 / "steps-icarl+rdkd.json").read_text())
    config = resolve(read_toml(v1 / "runs" / INTERRUPTED / "config.toml"))
    assert run_folder(config, v1 / "runs").name == INTERRUPTED
    trained: list[int] = []

    class Tasks(RunObserver):
        def training(self, number: int, classes: object) -> None:
            trained.append(number)

    result = run_config(config, v1 / "runs", Tasks())
    assert trained == [2, 3]
    # Later versions record more of a step.
    timeless = before[0].keys() - {"seconds", "images_per_second"}
    kept, had = (
        [{key: step[key] for key in timeless} for step in steps[:2]]
        for steps in (result["steps"], before)
    )
    assert kept == had
    for step, old in zip(result["steps"], before, strict=True):
        assert step["accuracy"] == pytest.approx(old["accuracy"], abs=0.05)
        assert step["classes"] == old["classes"]


@pytest.mark.parametrize("share", [1.0, 1.5])
def test_a_share_that_was_stored_as_a_number_stays_a_share(
    share: float, v1: Path, tmp_path: Path
) -> None:
    """Users write 1.0 for one epoch; earlier versions stored it for all epochs."""
    text = (v1 / "runs" / FINISHED / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(text.replace("epochs = 0.1\n", f"epochs = {share}\n"))
    config = resolve(read_toml(tmp_path / "config.toml"))
    assert config.schedules().base.epochs == 20 * share
    # The name that version 1 gave to the folder of such a run.
    names = {1.0: "digits-gkd-491e425f5a7f", 1.5: "digits-gkd-e034b5fde7b8"}
    assert run_folder(config, tmp_path).name == names[share]
    result = json.loads((v1 / "runs" / FINISHED / "result.json").read_text())
    assert resolve({**result["config"], "epochs": share}) == config
    (tmp_path / "config.toml").write_text(as_toml(config))
    assert resolve(read_toml(tmp_path / "config.toml")) == config


def test_a_finished_run_is_only_read(v1: Path) -> None:
    config = resolve(read_toml(v1 / "runs" / FINISHED / "config.toml"))
    stored = (v1 / "runs" / FINISHED / "result.json").read_bytes()
    assert run_config(config, v1 / "runs") == json.loads(stored)
    assert read_result(v1 / "runs" / FINISHED) == json.loads(stored)
    assert (v1 / "runs" / FINISHED / "result.json").read_bytes() == stored
