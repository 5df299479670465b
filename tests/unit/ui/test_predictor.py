import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from densekd.model.model import Model, undo
from densekd.model.teach import teach_model
from densekd.ui.predictor import PhotoPredictor
from densekd.ui.uploads import Upload

from support.photos import TINY, fill, picture


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that learned red and green, and then blue."""
    place = tmp_path_factory.mktemp("taught")
    for counts in ({"red": 8, "green": 8}, {"blue": 8}):
        teach_model(place / "model", fill(place / "images", counts), TINY)
    return place / "model"


@pytest.fixture
def photos(tmp_path: Path) -> list[Upload]:
    """A red picture, and a file that is no picture."""
    picture("red", 1).save(tmp_path / "good", "PNG")
    (tmp_path / "bad").write_text("no picture")
    return [Upload((), f"{name}.png", tmp_path / name) for name in ("good", "bad")]


def wait(predictor: PhotoPredictor) -> None:
    _until(lambda: not predictor.busy)


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 600
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_photos_are_predicted_as_the_model_does(model: Path, photos: list[Upload]) -> None:
    predictor = PhotoPredictor(model, top=2)
    predictor.show(photos, 1)
    assert [each.photo for each in predictor.predictions] == photos
    wait(predictor)
    good, bad = predictor.predictions
    expected = Model.open(model).predict([photos[0].file], top=2)[0]
    assert good.prediction is not None
    assert [guess.name for guess in good.prediction] == [guess.name for guess in expected]
    assert good.problem == ""
    assert "Can't read this file: not an image" in bad.problem
    assert predictor.find("good") == photos[0]
    predictor.close()


def test_photos_are_predicted_again_when_the_model_changes(
    model: Path, photos: list[Upload]
) -> None:
    predictor = PhotoPredictor(model, top=9)
    predictor.show(photos[:1], 1)
    wait(predictor)
    version = predictor.version
    predictor.follow(1)
    assert predictor.version == version
    undo(model, 0)
    predictor.follow(2)
    wait(predictor)
    names = {guess.name for guess in predictor.predictions[0].prediction or []}
    undo(model, 1)
    assert names == {"red", "green"}
    predictor.close()


def test_earlier_photos_are_deleted(model: Path, photos: list[Upload]) -> None:
    predictor = PhotoPredictor(model, top=1)
    predictor.show(photos[:1], 1)
    predictor.show(photos[1:], 1)
    assert predictor.find("good") is None
    assert not photos[0].file.exists()
    wait(predictor)
    assert [each.photo.id for each in predictor.predictions] == ["bad"]
    predictor.close()


def test_a_model_that_cannot_be_opened_is_a_problem(tmp_path: Path, photos: list[Upload]) -> None:
    predictor = PhotoPredictor(tmp_path / "no model", top=1)
    predictor.show(photos[:1], 1)
    wait(predictor)
    assert "There is no model" in predictor.predictions[0].problem
    predictor.close()


def test_an_unexpected_error_is_a_problem(
    tmp_path: Path,
    photos: list[Upload],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(images: object, top: int) -> NoReturn:
        raise RuntimeError("no memory is left")

    monkeypatch.setattr(Model, "open", lambda folder: SimpleNamespace(image_size=8, predict=fail))
    predictor = PhotoPredictor(tmp_path, top=1)
    predictor.show(photos, 1)
    wait(predictor)
    good, bad = predictor.predictions
    assert "RuntimeError: no memory is left" in good.problem
    assert "Can't read this file" in bad.problem
    assert "in fail" in caplog.text  # its traceback
    predictor.close()
