import dataclasses
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

from densekd.data.dataset import PixelImages, Split
from densekd.model.model import history
from densekd.model.options import TeachOptions
from densekd.model.request import Plan, TeachObserver
from densekd.model.teach import preview, teach_model
from densekd.model.trained.model import TrainedModel
from densekd.training.callbacks import Stopped, TrainingProgress

from support.photos import TINY, fill, picture


def options(**changes: Any) -> TeachOptions:
    return dataclasses.replace(TINY, **changes)


class Recorder(TeachObserver):
    """Records what is reported, and stops after some batches."""

    def __init__(self, batches: int | None = None) -> None:
        self.left = batches
        self.plans: list[Plan] = []
        self.repeats: list[int] = []
        self.done: list[str] = []
        self.epochs = 0

    def planned(self, plan: Plan) -> None:
        self.plans.append(plan)

    def repeated(self, step: int) -> None:
        self.repeats.append(step)

    def doing(self, what: str) -> None:
        self.done.append(what)

    def report(self, report: TrainingProgress) -> None:
        self.epochs += report.ends_epoch

    def stop(self) -> bool:
        if self.left is not None and self.plans:
            self.left -= 1
        return self.left == 0


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows red and green; its pictures are gone."""
    place = tmp_path_factory.mktemp("first")
    teach_model(place / "model", fill(place / "images", {"red": 20, "green": 20}), TINY)
    shutil.rmtree(place / "images")
    return place / "model"


@pytest.fixture
def model(first: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(first, tmp_path / "model"))


def tensors(model: Path) -> dict[str, torch.Tensor]:
    return TrainedModel.open(model).learner.state().tensors


def same(one: Path, other: Path) -> bool:
    mine, theirs = tensors(one), tensors(other)
    return mine.keys() == theirs.keys() and all(
        torch.equal(tensor, theirs[name]) for name, tensor in mine.items()
    )


def pictures_of(split: Split, label: int | None = None) -> set[bytes]:
    """The images of all classes or of one, to tell them apart."""
    assert isinstance(split.images, PixelImages)
    own = split.labels == split.labels if label is None else split.labels == label
    return {image.numpy().tobytes() for image in split.images.pixels[own]}


def test_class_names_survive_updates(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 20, "7": 20, "dark blue é": 20})
    update = teach_model(model, images, options(epochs=15))
    shutil.rmtree(images)
    opened = TrainedModel.open(model)
    assert opened.classes == ("green", "red", "7", "blue", "dark blue é")
    assert update.learned == ("7", "blue", "dark blue é")
    assert [each.name for each in update.classes] == list(opened.classes)
    shown = [opened.predict([picture(name, 99)])[0][0].name for name in ("7", "blue", "red")]
    assert shown == ["7", "blue", "red"]


def test_the_result_of_an_update(model: Path, tmp_path: Path) -> None:
    update = teach_model(model, fill(tmp_path / "images", {"blue": 20, "7": 40}), options(epochs=6))
    assert (update.step, update.replayed, update.epochs) == (1, (), 6)
    # 15 % of each class are kept to test on, of the two known ones too.
    assert {each.name: each.tested for each in update.classes} == {
        "green": 3,
        "red": 3,
        "7": 6,
        "blue": 3,
    }
    assert update.images == 17 + 34
    assert update.before is not None
    assert (update.before.new, update.before.old) == (0.0, 1.0)
    assert update.before.all == pytest.approx(6 / 15)
    assert update.after.new is not None
    assert update.after.new > 0.5
    changes = {each.name: each for each in update.classes}
    assert (changes["red"].before, changes["blue"].before) == (1.0, None)
    rights = [round((each.after or 0) * each.tested) for each in update.classes]
    assert update.after.all == pytest.approx(sum(rights) / 15)
    assert history(model)[1].update == update


def test_accuracy_agrees_with_the_learner(model: Path, tmp_path: Path) -> None:
    update = teach_model(model, fill(tmp_path / "images", {"blue": 20, "7": 40}), TINY)
    opened = TrainedModel.open(model)
    kept = opened.stored_images(tested=True)
    names = opened.learner.predict(kept.images)
    truth = [opened.classes[rank] for rank in kept.labels.tolist()]
    right = [name == true for name, true in zip(names, truth, strict=True)]
    assert update.after.all == pytest.approx(sum(right) / len(right))
    assert isinstance(kept.images, PixelImages)
    guesses = opened.predict(kept.images.pixels)
    assert [guess[0].name for guess in guesses] == names


def test_test_images_are_never_trained_on(model: Path, tmp_path: Path) -> None:
    teach_model(model, fill(tmp_path / "images", {"blue": 30}), TINY)
    opened = TrainedModel.open(model)
    tested, learned = (
        pictures_of(split)
        for split in (opened.stored_images(tested=True), opened.learner.memory.exemplars())
    )
    assert (len(tested), len(learned)) == (3 + 3 + 4, 3 * 4)
    assert not tested & learned


def test_a_known_class_is_refused(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 6, "red": 6})
    with pytest.raises(ValueError, match=r"'red' is known already; .* --known replay"):
        teach_model(model, images, TINY)
    with pytest.raises(ValueError, match="has no new class"):
        teach_model(model, fill(images, {"red": 6}), options(known="replay"))
    assert len(history(model)) == 1


def test_more_images_of_a_known_class_are_replayed(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 20, "red": 60}, first=1000)
    before = TrainedModel.open(model).learner.memory
    update = teach_model(model, images, options(known="replay"))
    assert (update.learned, update.replayed, update.images) == (("blue",), ("red",), 17 + 51)
    assert {each.name: each.tested for each in update.classes} == {
        "green": 3,
        "red": 3 + 9,
        "blue": 3,
    }
    after = TrainedModel.open(model).learner.memory
    assert len(after) == 3 * 4
    reds = [pictures_of(memory.exemplars(), label=1) for memory in (before, after)]
    # Of 4 + 51 candidates, hardly an old one.
    assert len(reds[0]) == len(reds[1]) == 4
    assert reds[0] != reds[1]


def test_more_images_of_a_known_class_change_the_weights(model: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(model, tmp_path / "alone"))
    teach_model(alone, fill(tmp_path / "images", {"blue": 20}), TINY)
    teach_model(
        model, fill(tmp_path / "more", {"blue": 20, "red": 9}, first=0), options(known="replay")
    )
    assert not same(alone, model)


def test_too_few_images_are_all_used_for_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = fill(tmp_path / "images", {"red": 30, "green": 1, "blue": 4})
    update = teach_model(tmp_path / "model", images, options(epochs=1))
    assert {each.name: each.tested for each in update.classes} == {"blue": 0, "green": 0, "red": 4}
    assert update.images == 31
    assert [each.after is None for each in update.classes] == [True, True, False]
    assert (
        "Too few images to hold some out for testing: 'blue', 'green'. All of them" in caplog.text
    )


def test_a_class_with_one_image_is_learned_without_forgetting(tmp_path: Path) -> None:
    model, images = tmp_path / "model", tmp_path / "images"
    teach_model(model, fill(images, {"red": 40, "green": 40, "blue": 40}), options(epochs=10))
    update = teach_model(model, fill(images, {"7": 1}), options(epochs=40))
    assert update.before is not None
    assert update.before.old == update.after.old == 1.0
    opened = TrainedModel.open(model)
    assert [guess[0].name for guess in opened.predict([picture("7", n) for n in range(5)])] == (
        ["7"] * 5
    )


def test_every_update_may_have_a_single_class(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    teach_model(tmp_path / "model", fill(tmp_path / "images", {"red": 1}), options(epochs=1))
    assert "one class takes nearly every image for 'red'" in caplog.text
    caplog.clear()
    teach_model(tmp_path / "model", fill(tmp_path / "images", {"blue": 6}), options(epochs=1))
    assert TrainedModel.open(tmp_path / "model").classes == ("red", "blue")
    assert "one class" not in caplog.text


@pytest.mark.parametrize("network", [None, "resnet8"])
def test_options_that_rule_out_a_pretrained_network_are_told(
    network: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = fill(tmp_path / "images", {"red": 4, "blue": 4})
    preview(tmp_path / "new", images, TeachOptions(epochs=1, image_size=8, network=network))
    assert ("Without them, the model gets a pretrained network" in caplog.text) == (not network)


def test_a_repeated_update_does_nothing(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 10})
    update, told = teach_model(model, images, TINY), Recorder()
    assert teach_model(model, images, TINY, told) == update
    assert (told.repeats, told.plans, told.epochs) == ([1], [], 0)
    assert len(history(model)) == 2
    with pytest.raises(ValueError, match="'blue' is known already"):
        teach_model(model, images, options(epochs=3))
    with pytest.raises(ValueError, match="'blue' is known already"):
        teach_model(model, fill(images, {"blue": 11}), TINY)


def test_a_stopped_update_continues(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 70, "7": 70})
    whole = Path(shutil.copytree(model, tmp_path / "whole"))
    undisturbed = Recorder()
    teach_model(whole, images, TINY, undisturbed)
    assert undisturbed.epochs == 2
    for _ in range(3):
        with pytest.raises(Stopped):
            teach_model(model, images, TINY, Recorder(batches=2))
        assert len(history(model)) == 1
        assert TrainedModel.open(model).classes == ("green", "red")
    rest = Recorder()
    teach_model(model, images, TINY, rest)
    assert [plan.resumed for plan in undisturbed.plans + rest.plans] == [False, True]
    assert rest.epochs < 2
    assert same(model, whole)
    assert not (model / "pending").exists()


def test_another_update_does_not_continue_a_stopped_one(model: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        teach_model(model, fill(tmp_path / "images", {"blue": 40}), TINY, Recorder(batches=1))
    told = Recorder()
    teach_model(model, fill(tmp_path / "images", {"7": 40}), TINY, told)
    assert [plan.resumed for plan in told.plans] == [False]
    assert TrainedModel.open(model).classes == ("green", "red", "7")


def test_a_preview_changes_nothing(model: Path, tmp_path: Path) -> None:
    before = sorted(model.rglob("*"))
    images = fill(tmp_path / "images", {"blue": 20, "red": 8})
    plan = preview(model, images, options(known="replay"))
    assert plan.learned == {"blue": 17}
    assert plan.replayed == {"red": 7}
    assert plan.tested == {"blue": 3, "red": 1}
    assert (plan.step, plan.task, plan.image_size) == (1, 1, 8)
    assert (plan.network, plan.phases) == ("resnet8", (("train", 2),))
    assert plan.seconds is not None
    assert 0 < plan.seconds < 60
    assert sorted(model.rglob("*")) == before
    preview(tmp_path / "new", fill(images, {"blue": 20}), TINY)
    assert not (tmp_path / "new").exists()


class Leaving(Recorder):
    """Stops as soon as training begins."""

    def stop(self) -> bool:
        return bool(self.plans)


class Hasty(Recorder):
    """Stops while images are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def reading(self, done: int, total: int) -> None:
        self.read = done

    def stop(self) -> bool:
        return self.read == 5


def test_reading_can_be_stopped(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 40})
    for target in (model, tmp_path / "new"):
        told = Hasty()
        with pytest.raises(Stopped):
            teach_model(target, images, TINY, told)
        assert (told.read, told.plans) == (5, [])
    assert len(history(model)) == 1
    assert not (tmp_path / "new").exists()


def test_a_short_update_does_not_change_later_schedules(tmp_path: Path) -> None:
    """Scaling rounds a schedule, so each update must scale the original one."""
    model, images, told = tmp_path / "model", tmp_path / "images", Recorder()
    for counts, given in (
        ({"red": 9, "green": 9}, options(method="podnet", epochs=1)),
        ({"blue": 9}, options(epochs=1)),
        ({"yellow": 9}, options(epochs=16)),
    ):
        teach_model(model, fill(images, counts), given, told)
    phases = [dict(plan.phases) for plan in told.plans]
    assert [each["train"] for each in phases] == [1, 1, 16]
    assert [each.get("finetune") for each in phases] == [None, 5, 5]
    assert TrainedModel.open(model).config.training.increment.epochs == 160


@pytest.mark.parametrize("name", [".current.json.ab12.tmp", ".DS_Store"])
def test_hidden_files_are_ignored(name: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / name).write_text("{")
    teach_model(model, fill(tmp_path / "images", {"red": 6, "green": 6}), TINY)
    assert TrainedModel.open(model).classes == ("green", "red")


def test_a_continued_update_keeps_its_budget(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 30})
    timed, left, again = options(epochs=None, budget=0.05), Leaving(), Recorder()
    with pytest.raises(Stopped):
        teach_model(model, images, timed, left)
    assert left.done == ["measuring"]
    update = teach_model(model, images, timed, again)
    (first,), (second,) = left.plans, again.plans
    assert first.phases == second.phases == (("train", update.epochs),)
    assert (first.resumed, second.resumed) == (False, True)


def test_changed_settings_of_a_stopped_update_are_not_believed(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 40})
    with pytest.raises(Stopped):
        teach_model(model, images, TINY, Recorder(batches=1))
    (file,) = model.glob("pending/*/config.toml")
    text = file.read_text()
    file.write_text(text.replace("epochs = 2", "epochs = 3"))
    assert file.read_text() != text
    with pytest.raises(ValueError, match=r"config\.toml is damaged"):
        teach_model(model, images, TINY)
    file.write_text(text.partition("\n")[2])  # without a checksum, as earlier versions wrote it
    assert teach_model(model, images, TINY).epochs == 2


def test_a_budget_that_is_too_small_is_warned_of(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = fill(tmp_path / "images", {"blue": 30})
    update = teach_model(model, images, options(epochs=None, budget=1e-6))
    assert update.epochs == 1
    assert "Not even one epoch fits into 1e-06 minutes; training one" in caplog.text


def test_a_locked_model_is_not_changed(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 6})
    with FileLock(model / "lock"), pytest.raises(ValueError, match="Another process is changing"):
        teach_model(model, images, TINY)
    assert TrainedModel.open(model).classes == ("green", "red")


def test_a_change_while_images_are_read_is_an_error(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 6})

    class Meddling(TeachObserver):
        def reading(self, done: int, total: int) -> None:
            if done == total:
                pointer = {"format": 1, "step": 0, "steps": 2}
                (model / "current.json").write_text(json.dumps(pointer))

    with pytest.raises(ValueError, match="was changed while the images were read; try again"):
        teach_model(model, images, TINY, Meddling())


@pytest.mark.parametrize(
    ("folder", "source", "words"),
    [
        ("images", "other", "is not a model, and has other files in it, such as 'blue'"),
        ("images/model", "images", "must not contain each other"),
        ("model", "model/images", "must not contain each other"),
        ("new", "nothing", "There is no folder"),
        ("file", "images", "is a file; give a folder for the model"),
    ],
)
def test_mixed_up_folders_are_refused(folder: str, source: str, words: str, tmp_path: Path) -> None:
    fill(tmp_path / "images", {"blue": 6})
    fill(tmp_path / "other", {"red": 6})
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=words):
        teach_model(tmp_path / folder, tmp_path / source, TINY)
    assert not (tmp_path / "new").exists()
    assert len(list((tmp_path / "images").rglob("*"))) == 7


def test_a_nearly_known_class_name_is_warned_of(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = fill(tmp_path / "images", {"red": 6})
    (images / "red").rename(images / "Red")
    teach_model(model, images, options(epochs=1))
    assert "The new class 'Red' and the known 'red' differ only by case or encoding" in caplog.text
    assert TrainedModel.open(model).classes == ("green", "red", "Red")


def test_a_clean_folder_gives_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        teach_model(tmp_path / "model", fill(tmp_path / "images", {"red": 20, "blue": 20}), TINY)
    assert caplog.records == []


def test_later_updates_use_the_first_normalisation(model: Path, tmp_path: Path) -> None:
    before = TrainedModel.open(model).facts["mean"]
    teach_model(model, fill(tmp_path / "images", {"7": 30}), TINY)
    assert TrainedModel.open(model).facts["mean"] == before
    assert not np.allclose(before, [0.9, 0.9, 0.9], atol=0.1)


def test_a_trained_model_says_how_to_move_on(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    teach_model(model, fill(tmp_path / "images", {"blue": 6}), TINY)
    assert "learn NEW_MODEL FOLDER" not in caplog.text  # these options ask for training
    preview(model, fill(tmp_path / "images", {"7": 6}), TeachOptions())
    assert "learn NEW_MODEL FOLDER" in caplog.text
