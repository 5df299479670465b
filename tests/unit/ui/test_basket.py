from pathlib import Path

import pytest

from densekd.ui.basket import Basket
from densekd.ui.uploads import Upload


@pytest.fixture
def basket(tmp_path: Path) -> Basket:
    """A basket with two cats and two photos that have no class yet."""
    filled = Basket()
    for i, folders in enumerate([("cat",), ("cat",), (), ()]):
        file = tmp_path / str(i)
        file.touch()
        filled.add([Upload(folders, f"{i}.png", file)])
    return filled


def labels(basket: Basket) -> dict[str, str]:
    return {photo.id: photo.label for photo in basket.photos()}


def test_single_photos_are_removed_with_their_files(basket: Basket, tmp_path: Path) -> None:
    version = basket.version
    basket.remove(["1", "3", "not here"])
    assert labels(basket) == {"0": "cat", "2": ""}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "2"]
    assert basket.version > version


def test_photos_are_moved_to_another_class(basket: Basket) -> None:
    basket.move(["0", "2", "not here"], " dog ")
    assert labels(basket) == {"0": "dog", "1": "cat", "2": "dog", "3": ""}
    with pytest.raises(ValueError, match="a/b"):
        basket.move(["0"], "a/b")
    assert labels(basket)["0"] == "dog"


def test_only_photos_without_a_class_are_named(basket: Basket) -> None:
    with pytest.raises(ValueError, match="Enter a class name"):
        basket.name_rest(" ")
    basket.name_rest("dog")
    assert labels(basket) == {"0": "cat", "1": "cat", "2": "dog", "3": "dog"}
    basket.name_rest("")  # none is left to be named


def test_photos_that_are_taken_out_keep_their_files(basket: Basket) -> None:
    taken = basket.take(["0", "3"])
    assert [photo.id for photo in taken] == ["0", "3"]
    assert all(photo.file.exists() for photo in taken)
    assert basket.find("0") is None
    basket.add(taken)
    assert basket.find("0") == taken[0]
