"""Real photos of clothes: few, unequal and nearly equal ones, in steps and at once."""

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from densekd.model.frozen.model import FrozenModel
from densekd.model.options import TeachOptions
from densekd.model.predict import image_files
from densekd.model.teach import teach_model

DEFAULT = TeachOptions()


@pytest.fixture(scope="module")
def clothing() -> Path:
    """Folders train and test, with a sub-folder of photos for each class."""
    folder = Path(os.environ.get("DENSEKD_DATA", ""), "clothing")
    if not (folder / "train").is_dir():
        pytest.skip("no photos of clothes")
    return folder


def some(clothing: Path, to: Path, counts: dict[str, int]) -> Path:
    """Copy the first photos of some classes."""
    shutil.rmtree(to, ignore_errors=True)
    for name, count in counts.items():
        (to / name).mkdir(parents=True)
        for file in sorted((clothing / "train" / name).iterdir())[:count]:
            shutil.copy(file, to / name)
    return to


def right(model: Path, clothing: Path, name: str, most: int = 12) -> float:
    """The share of test photos of a class that are named right."""
    found = FrozenModel.open(model).predict(image_files(clothing / "test" / name)[:most])
    return sum(guesses[0].name == name for guesses in found) / len(found)


@pytest.fixture(scope="module")
def taught(clothing: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of shoes, pants and hats."""
    place = tmp_path_factory.mktemp("clothing")
    photos = some(clothing, place / "photos", {"shoes": 15, "pants": 15, "hat": 15})
    teach_model(place / "model", photos, DEFAULT)
    shutil.rmtree(photos)
    return place / "model"


@pytest.fixture
def model(taught: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(taught, tmp_path / "model"))


@pytest.mark.slow
def test_one_photo_teaches_a_class_and_the_others_stay(
    model: Path, clothing: Path, tmp_path: Path
) -> None:
    before = [right(model, clothing, name) for name in ("shoes", "pants", "hat")]
    assert min(before) >= 0.75
    teach_model(model, some(clothing, tmp_path / "photos", {"dress": 1}), DEFAULT)
    after = [right(model, clothing, name) for name in ("shoes", "pants", "hat")]
    assert all(new >= old - 0.1 for old, new in zip(before, after, strict=True))
    assert right(model, clothing, "dress") >= 0.2


@pytest.mark.slow
def test_few_photos_beside_many(clothing: Path, tmp_path: Path) -> None:
    photos = some(clothing, tmp_path / "photos", {"shoes": 100, "hat": 3})
    teach_model(tmp_path / "model", photos, DEFAULT)
    assert right(tmp_path / "model", clothing, "hat") >= 0.6
    assert right(tmp_path / "model", clothing, "shoes") >= 0.9


@pytest.mark.slow
def test_nearly_equal_photos_do_not_spoil_it(model: Path, clothing: Path, tmp_path: Path) -> None:
    """Five photos of dresses, each with mirrored, brighter and cropped copies."""
    photos = some(clothing, tmp_path / "photos", {"dress": 5})
    for file in sorted((photos / "dress").iterdir()):
        image = Image.open(file).convert("RGB")
        ImageOps.mirror(image).save(file.with_stem(f"{file.stem}-mirrored"))
        image.point(lambda level: min(255, int(level * 1.1))).save(
            file.with_stem(f"{file.stem}-brighter")
        )
        ImageOps.crop(image, 8).save(file.with_stem(f"{file.stem}-cropped"))
    teach_model(model, photos, DEFAULT)
    assert right(model, clothing, "dress") >= 0.6
    assert min(right(model, clothing, name) for name in ("shoes", "pants", "hat")) >= 0.7
