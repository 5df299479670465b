"""Models on a frozen backbone, taught with small pictures by the real network."""

import dataclasses
import logging
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from densekd.data.dataset import PixelImages
from densekd.model.frozen.model import FrozenModel
from densekd.model.model import Model, history, model_info, undo
from densekd.model.options import TeachOptions
from densekd.model.request import Plan, TeachObserver
from densekd.model.teach import preview, teach_model
from densekd.model.trained.model import TrainedModel
from densekd.training.callbacks import Stopped
from densekd.training.checkpoint import load_state, save_state

from support.photos import TINY, fill, picture

DEFAULT = TeachOptions()
ADD = TeachOptions(known="add")


class Recorder(TeachObserver):
    """Records what is reported, and stops once so many photos are read."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.plans: list[Plan] = []
        self.repeats: list[int] = []
        self.first: int | None = None
        self.done = 0

    def planned(self, plan: Plan) -> None:
        self.plans.append(plan)

    def repeated(self, step: int) -> None:
        self.repeats.append(step)

    def reading(self, done: int, total: int) -> None:
        if self.plans:  # the photos were hashed
            self.first = done if self.first is None else self.first
            self.done = done

    def stop(self) -> bool:
        return self.most is not None and self.done >= self.most


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows green and red; its pictures are gone."""
    place = tmp_path_factory.mktemp("first")
    teach_model(place / "model", fill(place / "images", {"red": 20, "green": 20}), DEFAULT)
    shutil.rmtree(place / "images")
    return place / "model"


@pytest.fixture
def model(first: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(first, tmp_path / "model"))


def best(model: Path, *names: str) -> list[str | None]:
    return [
        guesses[0].name for guesses in Model.open(model).predict([picture(n, 99) for n in names])
    ]


def test_it_is_the_default(first: Path) -> None:
    opened = Model.open(first)
    assert isinstance(opened, FrozenModel)
    assert (opened.network, opened.image_size, opened.classes) == ("lite0", 224, ("green", "red"))
    assert best(first, "red", "green") == ["red", "green"]


def test_what_asks_for_training() -> None:
    assert not DEFAULT.trains
    assert not TeachOptions(network="lite1", budget=3, known="add").trains
    assert TINY.trains
    for changes in ({"method": "fdkd"}, {"epochs": 1}, {"image_size": 8}, {"network": "resnet8"}):
        assert dataclasses.replace(DEFAULT, **changes).trains


def test_classes_are_added_without_the_old_photos(model: Path, tmp_path: Path) -> None:
    update = teach_model(model, fill(tmp_path / "images", {"blue": 20, "7": 20}), DEFAULT)
    assert (update.step, update.learned, update.epochs) == (1, ("7", "blue"), 0)
    assert update.images == 2 * 17
    assert {each.name: each.tested for each in update.classes} == dict.fromkeys(
        ("green", "red", "7", "blue"), 3
    )
    assert update.before is not None
    assert (update.before.new, update.before.old) == (0.0, 1.0)
    assert update.after.all == 1.0
    assert best(model, "red", "green", "blue", "7") == ["red", "green", "blue", "7"]
    assert [entry.update.learned for entry in history(model)] == [("green", "red"), ("7", "blue")]


def test_the_head_is_that_of_all_photos_at_once(model: Path, tmp_path: Path) -> None:
    teach_model(model, fill(tmp_path / "images", {"blue": 20}), DEFAULT)
    together = tmp_path / "together"
    names = {"red": 20, "green": 20, "blue": 20}
    teach_model(together, fill(tmp_path / "images", names), DEFAULT)
    pixels = FrozenModel.open(model).read([picture(name, 99) for name in names])
    # Classes are in another order: blue is the last of one and the first of the other.
    one, other = (FrozenModel.open(each).probabilities(pixels) for each in (model, together))
    assert torch.allclose(one[:, [2, 0, 1]], other, atol=0.02)


def test_features_are_those_of_the_photos(first: Path) -> None:
    opened = FrozenModel.open(first)
    photos = opened.photos
    assert (len(photos), photos.features.dtype) == (40, torch.float16)
    pictures = [picture(name, number) for name in ("green", "red") for number in range(20)]
    computed = opened.backbone.features(opened.read(pictures))
    assert torch.allclose(photos.features.float(), computed, atol=1e-3)
    assert opened.labels.tolist() == [0] * 20 + [1] * 20
    assert int(photos.test.sum()) == 6
    assert bool(photos.kept.all())


@pytest.mark.parametrize(("tested", "images"), [(True, 6), (False, 34)])
def test_stored_images(first: Path, tested: bool, images: int) -> None:
    opened = FrozenModel.open(first)
    every = opened.stored_images(tested=tested)
    assert isinstance(every.images, PixelImages)
    assert every.images.pixels.shape == (images, 3, 224, 224)
    assert every.labels.tolist() == [0] * (images // 2) + [1] * (images // 2)
    # Fewer are spread over all classes.
    fewer = opened.stored_images(tested=tested, most=3)
    assert isinstance(fewer.images, PixelImages)
    assert fewer.labels.tolist() == every.labels[[0, (images - 1) // 2, -1]].tolist()
    assert torch.equal(fewer.images.pixels[2], every.images.pixels[-1])
    assert len(opened.stored_images(tested=tested, most=0)) == 0


def test_held_out_photos_are_not_in_the_head_that_is_tested(model: Path) -> None:
    opened = FrozenModel.open(model)
    assert not torch.equal(opened.head.weight, opened.evaluation_head.weight)
    info = model_info(model)
    assert (info.exemplars, info.tested, info.network) == (34, 6, "lite0")
    assert [(each.step, each.exemplars) for each in info.classes] == [(0, 17), (0, 17)]


def test_more_photos_of_known_classes(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"red": 10}, first=500)
    with pytest.raises(ValueError, match=r"'red' is known already.*--known add"):
        teach_model(model, images, DEFAULT)
    update = teach_model(model, images, ADD)
    assert (update.learned, update.replayed, update.images) == ((), ("red",), 8)
    assert Model.open(model).training_counts() == [17, 17 + 8]


def test_copies_are_learned_once(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = fill(tmp_path / "images", {"red": 20, "blue": 3})
    shutil.copy(images / "blue" / "0000.png", images / "blue" / "again.png")
    with caplog.at_level(logging.WARNING):
        update = teach_model(model, images, ADD)
    assert "21 photos are copies" in caplog.text
    assert (update.images, update.replayed) == (3, ())


def test_nothing_new_is_an_error(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"red": 2, "green": 20})
    with pytest.raises(ValueError, match="no photo that the model wasn't taught"):
        teach_model(model, images, ADD)


def test_a_photo_in_two_classes_is_mentioned(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = fill(tmp_path / "images", {"blue": 2, "7": 2})
    shutil.copy(images / "blue" / "0000.png", images / "7" / "wrong.png")
    with caplog.at_level(logging.WARNING):
        teach_model(model, images, DEFAULT)
    assert "2 photos are in more than one class" in caplog.text
    picture("red", 0).save(fill(tmp_path / "images", {"yellow": 2}) / "yellow" / "wrong.png")
    teach_model(model, tmp_path / "images", DEFAULT)
    assert "1 photos are in more than one class" in caplog.text  # taught as red before


def test_one_photo_of_a_class_is_enough(model: Path, tmp_path: Path) -> None:
    update = teach_model(model, fill(tmp_path / "images", {"blue": 1}), DEFAULT)
    assert update.images == 1
    assert best(model, "blue", "red") == ["blue", "red"]


def test_a_repeated_update_does_nothing(model: Path, tmp_path: Path) -> None:
    images, recorder = fill(tmp_path / "images", {"blue": 6}), Recorder()
    update = teach_model(model, images, DEFAULT)
    assert teach_model(model, images, DEFAULT, recorder) == update
    assert (recorder.repeats, len(history(model))) == ([1], 2)


def test_an_interrupted_update_resumes_to_the_same_bits(
    model: Path, first: Path, tmp_path: Path
) -> None:
    images = fill(tmp_path / "images", {"blue": 60})
    with pytest.raises(Stopped):
        teach_model(model, images, DEFAULT, Recorder(16))
    assert len(history(model)) == 1
    recorder = Recorder()
    teach_model(model, images, DEFAULT, recorder)
    assert recorder.plans[0].resumed
    assert recorder.first is not None
    assert recorder.first > 16
    undisturbed = Path(shutil.copytree(first, tmp_path / "undisturbed"))
    teach_model(undisturbed, images, DEFAULT)
    mine, theirs = (FrozenModel.open(each) for each in (model, undisturbed))
    assert all(torch.equal(x, theirs.tensors[name]) for name, x in mine.tensors.items())
    assert torch.equal(mine.photos.features, theirs.photos.features)
    assert mine.photos.jpegs == theirs.photos.jpegs


def test_unreadable_photos_are_left_out(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = fill(tmp_path / "images", {"blue": 4})
    (images / "blue" / "broken.png").write_text("no image")
    with caplog.at_level(logging.WARNING):
        update = teach_model(model, images, DEFAULT)
    # One of the five files was held out to test on.
    assert (update.images, update.classes[-1].tested) == (3, 1)
    assert "broken.png" in caplog.text


def test_a_budget_takes_some_photos_of_each_class(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = fill(tmp_path / "images", {"blue": 30, "7": 4})
    with caplog.at_level(logging.WARNING):
        update = teach_model(model, images, TeachOptions(budget=1e-6))
    assert "is enough for 2 of the 34 photos; teach the same again" in caplog.text
    assert (update.images, update.learned) == (2, ("7", "blue"))
    # The same command goes on with the rest.
    again = teach_model(model, images, TeachOptions(budget=1e-6))
    assert (again.step, again.images, again.replayed) == (2, 2, ("7", "blue"))


def test_what_a_budget_left_out_is_learned_until_nothing_is_left(
    model: Path, tmp_path: Path
) -> None:
    images, options = fill(tmp_path / "images", {"blue": 2, "7": 1}), TeachOptions(budget=1e-6)
    for step, count in ((1, 2), (2, 1)):
        update = teach_model(model, images, options)
        assert (update.step, update.images) == (step, count)
    recorder = Recorder()
    assert teach_model(model, images, options, recorder).step == 2
    assert recorder.repeats == [2]


def test_a_preview_changes_nothing(model: Path, tmp_path: Path) -> None:
    plan = preview(model, fill(tmp_path / "images", {"blue": 10, "red": 1}, first=50), ADD)
    assert (plan.learned, plan.replayed, plan.tested) == ({"blue": 8}, {"red": 1}, {"blue": 2})
    assert plan.seconds is not None
    assert plan.seconds > 0
    assert (plan.phases, len(history(model))) == ((), 1)


def test_a_preview_takes_no_more_photos_than_the_budget_allows(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 30, "7": 4})
    plan = preview(model, images, TeachOptions(budget=1e-6))
    assert plan.learned == {"7": 1, "blue": 1}


def test_every_photo_is_hashed_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, works = list[str](), Path.read_bytes

    def counting(file: Path) -> bytes:
        hashed.extend([file.name] if file.suffix == ".png" else [])
        return works(file)

    monkeypatch.setattr(Path, "read_bytes", counting)
    teach_model(model, fill(tmp_path / "images", {"blue": 3}), DEFAULT)
    assert sorted(hashed) == ["0000.png", "0001.png", "0002.png"]


def test_a_photo_that_vanishes_is_left_out(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = fill(tmp_path / "images", {"blue": 3})

    class Meddling(Recorder):
        def reading(self, done: int, total: int) -> None:
            super().reading(done, total)
            if self.done == total:  # all features are computed
                (images / "blue" / "0001.png").unlink(missing_ok=True)

    update = teach_model(model, images, DEFAULT, Meddling())
    assert (update.images, FrozenModel.open(model).labels.tolist().count(2)) == (2, 2)
    assert "0001.png': No such file" in caplog.text


def test_hashing_and_keeping_images_are_shown_and_can_be_stopped(
    model: Path, tmp_path: Path
) -> None:
    images = fill(tmp_path / "images", {"blue": 5})

    class Stopping(TeachObserver):
        def __init__(self, at: int | None = None) -> None:
            self.at, self.told = at, list[tuple[int, int]]()

        def reading(self, done: int, total: int) -> None:
            self.told.append((done, total))

        def stop(self) -> bool:
            return len(self.told) == self.at

    each = [(number, 5) for number in range(1, 6)]
    for at, features in ((3, 0), (5 + 1 + 2, 1)):
        observer = Stopping(at)
        with pytest.raises(Stopped):
            teach_model(model, images, DEFAULT, observer)
        assert observer.told == [*each, (5, 5), *each][:at]
        saved = [*(model / "pending").rglob("*.safetensors")]
        assert len(saved) == features
    observer = Stopping()
    teach_model(model, images, DEFAULT, observer)
    assert observer.told == [*each, *each]  # no feature was computed again


def test_a_fine_tuned_step_is_taught_without_the_one_before(model: Path, tmp_path: Path) -> None:
    teach_model(model, fill(tmp_path / "images", {"blue": 3}), DEFAULT)
    path = model / "steps" / "001" / "state"
    state = load_state(path)
    state.facts["update"]["edit"] = {"action": "fine-tuned on", "classes": [], "photos": 3}
    save_state(path, state)
    (model / "steps" / "000" / "state.json").unlink()
    assert teach_model(model, fill(tmp_path / "images", {"7": 3}), DEFAULT).step == 2


def test_undo_and_another_branch(model: Path, tmp_path: Path) -> None:
    teach_model(model, fill(tmp_path / "images", {"blue": 6}), DEFAULT)
    undo(model)
    teach_model(model, fill(tmp_path / "images", {"yellow": 6}), DEFAULT)
    opened = FrozenModel.open(model)
    assert opened.classes == ("green", "red", "yellow")
    assert opened.facts["photos"] == [0, 2]
    assert Model.open(model, 1).classes == ("green", "red", "blue")


def test_training_options_are_refused(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"blue": 2})
    with pytest.raises(ValueError, match="network is lite0 and can't become lite1"):
        teach_model(model, images, TeachOptions(network="lite1"))
    with pytest.raises(ValueError, match="frozen, so it has no method"):
        teach_model(model, images, TeachOptions(epochs=3))
    assert len(history(model)) == 1


def test_a_damaged_feature_file_is_one_sentence(model: Path, tmp_path: Path) -> None:
    (file,) = (model / "steps" / "000").glob("photos-*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    assert best(model, "red") == ["red"]  # features aren't needed to predict
    with pytest.raises(ValueError, match="damaged"):
        teach_model(model, fill(tmp_path / "images", {"blue": 2}), DEFAULT)


def test_the_kinds_are_told_apart(first: Path) -> None:
    with pytest.raises(ValueError, match="is a FrozenModel, not a TrainedModel"):
        TrainedModel.open(first)


def test_what_was_never_taught_is_unknown(first: Path) -> None:
    opened = FrozenModel.open(first)
    known, other = (
        opened.read([picture(name, number) for number in range(700, 720)])
        for name in ("red", "yellow")
    )
    assert sum(guesses.known for guesses in opened.predict(known)) >= 17
    assert sum(guesses.known for guesses in opened.predict(other)) <= 5
    assert {guesses.name for guesses in opened.predict(other) if not guesses.known} == {None}
    opened.refused = 0
    assert all(guesses.known for guesses in opened.predict(other))


def test_transparent_and_grey_images_are_read(first: Path) -> None:
    opened = Model.open(first)
    grey = Image.new("L", (30, 20), 128)
    assert opened.read([grey, Image.new("RGBA", (5, 5))]).shape == (2, 3, 224, 224)


def test_test_photos_alone_can_be_added_to_a_known_class(tmp_path: Path) -> None:
    source = tmp_path / "photos"
    fill(source / "train", {"red": 3, "green": 3})
    fill(source / "val", {"red": 2, "green": 2}, first=10)
    teach_model(tmp_path / "model", source, DEFAULT)
    picture("red", 50).save(source / "val" / "red" / "new.png")
    update = teach_model(tmp_path / "model", source, TeachOptions(known="add"))
    assert {each.name: each.tested for each in update.classes} == {"red": 3, "green": 2}
