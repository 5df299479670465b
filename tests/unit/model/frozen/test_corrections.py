from hashlib import sha256
from pathlib import Path

import pytest

from densekd.model.frozen.corrections import Correction, correct_photos
from densekd.model.frozen.model import FrozenModel
from densekd.model.frozen.review import find_suspects
from densekd.model.model import history, undo
from densekd.model.options import TeachOptions
from densekd.model.teach import teach_model

from support.photos import fill, picture


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
