from pathlib import Path

import pytest
import torch

from densekd.model.frozen.edit import file_hash, forget
from densekd.model.frozen.head import LinearHead
from densekd.model.frozen.model import FrozenModel
from densekd.model.frozen.review import find_confusions, find_suspects
from densekd.model.model import Model, history
from densekd.model.options import TeachOptions
from densekd.model.teach import teach_model

from support.photos import TINY, fill, picture


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> FrozenModel:
    """A model of four colours, one of a single picture; two green pictures are among the red."""
    place = tmp_path_factory.mktemp("taught")
    source = fill(place / "images", {"red": 14, "green": 16, "blue": 16, "yellow": 1})
    for number in (90, 91):
        picture("green", number).save(source / "red" / f"wrong {number}.png")
    teach_model(place / "model", source, TeachOptions())
    return FrozenModel.open(place / "model")


def test_photos_in_the_wrong_class_are_found(taught: FrozenModel) -> None:
    found = find_suspects(taught, most=12)
    assert [(each.label, each.guess) for each in found] == [("red", "green")] * 2
    hashes = {bytes(row.tolist()) for row in taught.photos.hashes}
    assert {each.hash for each in found} <= hashes
    assert all(each.image in taught.photos.jpegs for each in found)
    assert find_suspects(taught, most=1) == found[:1]


def test_confusions_are_the_mistakes_on_test_photos(taught: FrozenModel) -> None:
    _check_confusions(taught)


def test_a_trained_model_has_confusions_but_no_suspects(tmp_path: Path) -> None:
    teach_model(
        tmp_path / "model", fill(tmp_path / "images", {"red": 30, "green": 30, "7": 30}), TINY
    )
    model = Model.open(tmp_path / "model")
    _check_confusions(model)
    assert find_suspects(model, most=12) == []


def test_photos_that_a_class_learns_from_are_not_tested_on(tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"red": 6, "green": 6})
    teach_model(tmp_path / "model", images, TeachOptions())
    photos = FrozenModel.open(tmp_path / "model").photos
    learned = {row.tobytes() for row in photos.hashes[~photos.test].numpy()}
    files = [file for file in (images / "red").iterdir() if file_hash(file) in learned]
    forget(tmp_path / "model", [], files)
    model = FrozenModel.open(tmp_path / "model")
    assert model.entry.update.classes[1].tested == 0
    # A head that takes every photo for a green one.
    width = model.backbone.width
    model.evaluation_head = LinearHead(torch.zeros(2, width), torch.tensor([1.0, 0.0]))
    assert find_confusions(model) == []


def _check_confusions(model: Model) -> None:
    """The confusions must add up to what the history says about each class."""
    found = find_confusions(model)
    counts = [len(each.images) for each in found]
    assert counts == sorted(counts, reverse=True)
    for each in history(model.folder)[-1].update.classes:
        own = [confusion for confusion in found if confusion.label == each.name]
        wrong = sum(len(confusion.images) for confusion in own)
        if each.after is None:
            assert own == []
        else:
            assert wrong == round((1 - each.after) * each.tested)
        assert all(confusion.tested == each.tested for confusion in own)
        assert each.name not in [confusion.guess for confusion in own]
