import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from densekd.model.frozen.edit import (
    Correction,
    correct_photos,
    file_hash,
    forget,
    merge_classes,
)
from densekd.model.frozen.model import FrozenModel
from densekd.model.frozen.review import find_suspects
from densekd.model.model import history, undo
from densekd.model.options import TeachOptions
from densekd.model.teach import teach_model

from support.photos import TINY, fill, picture


@pytest.fixture
def taught(tmp_path: Path) -> Path:
    """A model of three colours, where two green pictures are among the red; blue has one."""
    source = fill(tmp_path / "images", {"red": 10, "green": 12, "blue": 1})
    for number in (90, 91):
        picture("green", number).save(source / "red" / f"wrong {number}.png")
    teach_model(tmp_path / "model", source, TeachOptions())
    return tmp_path / "model"


def counts(model: Path) -> dict[str, int]:
    opened = FrozenModel.open(model)
    found = [opened.classes[rank] for rank in opened.labels.tolist() if rank >= 0]
    return {name: found.count(name) for name in opened.classes}


def test_photos_are_moved_and_removed_in_a_step_that_can_be_undone(taught: Path) -> None:
    first, second = find_suspects(FrozenModel.open(taught), most=2)
    update = correct_photos(
        taught,
        [Correction(first.hash, "red", "green"), Correction(second.hash, "red", None)],
    )
    assert (update.step, update.learned, update.images) == (1, (), 0)
    assert counts(taught) == {"blue": 1, "green": 13, "red": 10}
    assert find_suspects(FrozenModel.open(taught), most=9) == []
    assert [entry.parent for entry in history(taught)] == [None, 0]
    undo(taught)
    assert counts(taught) == {"blue": 1, "green": 12, "red": 12}


def test_impossible_corrections_change_nothing(taught: Path) -> None:
    blue = sha256((taught.parent / "images" / "blue" / "0000.png").read_bytes()).digest()
    with pytest.raises(ValueError, match="No photo of 'blue' would be left"):
        correct_photos(taught, [Correction(blue, "blue", "red")])
    with pytest.raises(ValueError, match="photo of 'red' was changed meanwhile"):
        correct_photos(taught, [Correction(blue, "red", None)])
    assert len(history(taught)) == 1


def test_a_photo_counts_once_in_a_merged_class(tmp_path: Path) -> None:
    source = fill(tmp_path / "images", {"red": 6, "green": 6, "blue": 6})
    shutil.copy(source / "red" / "0000.png", source / "green" / "same.png")
    teach_model(tmp_path / "model", source, TeachOptions())
    merge_classes(tmp_path / "model", "red", "green")
    assert counts(tmp_path / "model") == {"blue": 6, "green": 12}
    wrong = Correction(file_hash(source / "red" / "0000.png"), "green", None)
    update = correct_photos(tmp_path / "model", [wrong])
    assert str(update.edit) == "corrected 1 photo"
    assert counts(tmp_path / "model") == {"blue": 6, "green": 11}


def test_a_photo_that_moves_to_a_class_that_has_it_counts_once(tmp_path: Path) -> None:
    source = fill(tmp_path / "images", {"red": 6, "green": 6})
    shutil.copy(source / "red" / "0000.png", source / "green" / "same.png")
    teach_model(tmp_path / "model", source, TeachOptions())
    wrong = Correction(file_hash(source / "red" / "0000.png"), "green", "red")
    correct_photos(tmp_path / "model", [wrong])
    assert counts(tmp_path / "model") == {"green": 6, "red": 6}


def test_a_class_of_test_photos_only_is_not_in_the_way(taught: Path, tmp_path: Path) -> None:
    opened, green = FrozenModel.open(taught), tmp_path / "images" / "green"
    learned = {row.tobytes() for row in opened.photos.hashes[~opened.photos.test].numpy()}
    forget(taught, [], [file for file in green.iterdir() if file_hash(file) in learned])
    wrong = tmp_path / "images" / "red" / "wrong 90.png"
    correct_photos(taught, [Correction(file_hash(wrong), "red", None)])
    assert counts(taught) == {"blue": 1, "green": 2, "red": 11}


def test_what_can_not_be_corrected(taught: Path, tmp_path: Path) -> None:
    wrong = file_hash(tmp_path / "images" / "red" / "wrong 90.png")
    with pytest.raises(ValueError, match="was changed meanwhile; try again"):
        correct_photos(taught, [Correction(wrong, "red", "purple")])
    with pytest.raises(ValueError, match="no such photos to correct"):
        correct_photos(taught, [])  # as a page asks that others have changed meanwhile
    trained = tmp_path / "trained"
    teach_model(trained, fill(tmp_path / "more", {"red": 6, "green": 6}), TINY)
    with pytest.raises(ValueError, match="was trained by a method"):
        correct_photos(trained, [Correction(wrong, "red", None)])
