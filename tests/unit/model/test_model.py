import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from densekd.data.dataset import PixelImages
from densekd.data.decode import UnreadableImage, centre_crop
from densekd.model.frozen.backbone import BATCH
from densekd.model.model import Model, Prediction, history, undo
from densekd.model.options import TeachOptions
from densekd.model.predict import image_files, predict_files
from densekd.model.teach import teach_model
from densekd.model.trained.model import TrainedModel

from support.photos import TINY, fill, picture


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that learned red and green, and then blue."""
    place = tmp_path_factory.mktemp("taught")
    for counts in ({"red": 20, "green": 20}, {"blue": 20}):
        teach_model(place / "model", fill(place / "images", counts), TINY)
    return place / "model"


@pytest.fixture
def model(taught: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(taught, tmp_path / "model"))


def test_images_are_read_as_for_training(taught: Path, tmp_path: Path) -> None:
    shown = picture("red", 5, size=30)
    shown.save(tmp_path / "red.png")
    model = TrainedModel.open(taught)
    read = model.read([tmp_path / "red.png", shown, np.array(shown)])
    assert (read.dtype, read.shape) == (torch.uint8, (3, 3, 8, 8))
    assert all(torch.equal(each, centre_crop(shown, 8)) for each in read)
    assert model.read([]).shape == (0, 3, 8, 8)
    grey = np.full((12, 10), 80, np.uint8)
    assert (model.read([grey]) == 80).all()


def test_reading_does_not_change_an_image(taught: Path) -> None:
    turned = picture("red", 5, size=30)
    turned.getexif()[0x0112] = 6
    before = np.array(turned)
    TrainedModel.open(taught).read([turned])
    assert np.array_equal(np.array(turned), before)


def test_inputs_that_are_not_images_are_refused(taught: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_text("no image")
    model = TrainedModel.open(taught)
    with pytest.raises(UnreadableImage, match=r"bad\.png' can't be read: not an image"):
        model.read([tmp_path / "bad.png"])
    with pytest.raises(ValueError, match=r"must be uint8 of shape .* not float32"):
        model.read([np.zeros((4, 4, 3), np.float32)])
    with pytest.raises(ValueError, match=r"not uint8 of shape \[3, 5, 5\]"):
        model.read([np.zeros((3, 5, 5), np.uint8)])
    one: Any = np.array(picture("red", 5))
    with pytest.raises(ValueError, match="looks like one image; give a list"):
        model.predict(one)
    assert len(model.read(one[None])) == 1


def test_guesses_are_names_with_probabilities(taught: Path) -> None:
    model = TrainedModel.open(taught)
    pixels = model.read([picture(name, 50) for name in ("red", "green", "blue")])
    shares = model.probabilities(pixels)
    assert shares.shape == (3, 3)
    assert torch.allclose(shares.sum(1), torch.ones(3))
    guesses = model.predict(pixels, top=2)
    for row, guess in zip(shares, guesses, strict=True):
        assert [g.probability for g in guess] == pytest.approx(row.topk(2).values.tolist())
        assert [g.name for g in guess] == [model.classes[i] for i in row.topk(2).indices]
    assert [guess[0].name for guess in guesses] == model.learner.predict(PixelImages(pixels))
    assert [len(guess) for guess in model.predict(pixels, top=9)] == [3, 3, 3]
    with pytest.raises(ValueError, match="Can't give the 0 likeliest classes"):
        model.predict(pixels, top=0)


def test_the_temperature_is_fitted_to_the_test_images(taught: Path) -> None:
    model = TrainedModel.open(taught)
    kept = model.stored_images(tested=True)
    assert isinstance(kept.images, PixelImages)
    logits = model.learner.logits(kept.images)
    assert model.temperature != 1.0
    expected = (logits / model.temperature).softmax(1)
    assert torch.allclose(model.probabilities(kept.images.pixels), expected)


def test_a_method_that_predicts_by_means(tmp_path: Path) -> None:
    options = TeachOptions(image_size=8, network="resnet8", method="icarl", epochs=2)
    for counts in ({"red": 30, "green": 30}, {"blue": 30}):
        teach_model(tmp_path / "model", fill(tmp_path / "images", counts), options)
    model = TrainedModel.open(tmp_path / "model")
    kept = model.stored_images(tested=True)
    assert isinstance(kept.images, PixelImages)
    names = model.learner.predict(kept.images)
    assert [guess[0].name for guess in model.predict(kept.images.pixels)] == names
    # Products of unit vectors are within 1 of each other, so only a temperature tells them apart.
    assert model.temperature < 1


def test_earlier_steps_can_be_opened(taught: Path) -> None:
    assert TrainedModel.open(taught).step == 1
    assert TrainedModel.open(taught, 0).classes == ("green", "red")
    assert len(TrainedModel.open(taught, 0).stored_images(tested=True)) == 6
    assert len(TrainedModel.open(taught).stored_images(tested=True)) == 9
    with pytest.raises(ValueError, match=r"has no step 2; its steps are 0 to 1"):
        TrainedModel.open(taught, 2)


def test_a_home_folder_is_found(taught: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(taught.parent))
    assert Model.open("~/model").folder == taught


def test_undo_and_another_branch(model: Path, tmp_path: Path) -> None:
    before = TrainedModel.open(model, 0).learner.state().tensors
    assert undo(model).step == 0
    opened = TrainedModel.open(model)
    assert (opened.step, opened.classes) == (0, ("green", "red"))
    assert all(torch.equal(x, before[k]) for k, x in opened.learner.state().tensors.items())
    with pytest.raises(ValueError, match="nothing to go back to; `densekd history") as error:
        undo(model)
    assert "delete" not in str(error.value)  # step 1 would be lost
    teach_model(model, fill(tmp_path / "images", {"7": 20}), TINY)
    assert [(e.step, e.parent, e.current) for e in history(model)] == [
        (0, None, False),
        (1, 0, False),
        (2, 0, True),
    ]
    assert TrainedModel.open(model).classes == ("green", "red", "7")
    assert len(TrainedModel.open(model).stored_images(tested=True)) == 9
    assert undo(model, 1).current
    assert TrainedModel.open(model).classes == ("green", "red", "blue")
    with pytest.raises(ValueError, match="has no step 7"):
        undo(model, 7)


def test_a_missing_model_is_an_error(tmp_path: Path) -> None:
    for call in (TrainedModel.open, history, undo):
        with pytest.raises(
            ValueError, match=r"There is no model in .*; check its name. `densekd learn"
        ):
            call(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_one_step_is_current(taught: Path) -> None:
    assert [TrainedModel.open(taught, step).entry.current for step in (0, 1)] == [False, True]


def test_files_are_predicted_in_order(taught: Path, tmp_path: Path) -> None:
    names = ["red", "green", "blue"] * 60
    for number, name in enumerate(names):
        picture(name, number).save(tmp_path / f"{number:03}.PNG")
    (tmp_path / "090.PNG").write_bytes(b"broken")
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / ".hidden.png").write_bytes(b"none")
    (tmp_path / "deeper").mkdir()
    picture("red", 0).save(tmp_path / "deeper" / "red.gif")
    files = image_files(tmp_path)
    assert [file.name for file in files] == [*(f"{i:03}.PNG" for i in range(180)), "red.gif"]
    model = TrainedModel.open(taught)
    found = list(predict_files(model, files, top=2))
    assert [answer.file for answer in found] == files
    assert [answer.file.name for answer in found if answer.unreadable] == ["090.PNG"]
    expected = model.predict([file for file in files if file.name != "090.PNG"], top=2)
    given = [answer.prediction for answer in found if not answer.unreadable]
    assert [[g.name for g in each] for each in given] == [[g.name for g in e] for e in expected]
    assert [each[0].probability for each in given] == pytest.approx(
        [each[0].probability for each in expected], abs=1e-6
    )


def test_files_are_predicted_in_batches_that_fit_the_cache(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sizes = TrainedModel.open(taught), list[int]()
    picture("red", 0).save(tmp_path / "red.png")
    predict = model.predict

    def counted(pixels: torch.Tensor, top: int) -> list[Prediction]:
        sizes.append(len(pixels))
        return predict(pixels, top)

    monkeypatch.setattr(model, "predict", counted)
    assert len(list(predict_files(model, 50 * [tmp_path / "red.png"]))) == sum(sizes) == 50
    assert max(sizes) <= BATCH


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_predicting_files_restores_the_number_of_threads(
    threads: int, taught: Path, tmp_path: Path
) -> None:
    files = [tmp_path / f"{number}.png" for number in range(7)]
    for number, file in enumerate(files):
        picture("green", number).save(file)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        stream = predict_files(TrainedModel.open(taught), files)
        assert next(stream).prediction[0].name == "green"
        stream.close()
        assert len(list(predict_files(TrainedModel.open(taught), files))) == len(files)
        assert list(predict_files(TrainedModel.open(taught), [])) == []
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == threads
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("file", ["config.toml", "state.json", "state-*.safetensors"])
def test_damage_is_detected_and_another_step_can_be_used(
    file: str, model: Path, tmp_path: Path
) -> None:
    (damaged,) = (model / "steps" / "001").glob(file)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match=r"^Step 1 of .* can't be opened .* `densekd undo .* --to"):
        TrainedModel.open(model)
    if file == "state.json":  # which says what came before it
        for call in (undo, history, lambda folder: teach_model(folder, tmp_path / "images", TINY)):
            with pytest.raises(ValueError, match=r"is damaged: .* `densekd undo .* --to"):
                call(model)
    undo(model, 0)
    assert TrainedModel.open(model).classes == ("green", "red")


def test_a_transparent_image(taught: Path) -> None:
    clear = Image.new("RGBA", (9, 9), (0, 0, 0, 0))
    assert (TrainedModel.open(taught).read([clear]) == 255).all()
