"""Whatever interrupts an erasure, the model opens, and repeating the command finishes it."""

import functools
import shutil
from pathlib import Path

import pytest
import torch

from densekd.model.frozen.erase import erase
from densekd.model.frozen.model import FrozenModel
from densekd.model.model import Model, history
from densekd.model.options import TeachOptions
from densekd.model.teach import teach_model

from support.faults import copied_before_each_change, full_disk
from support.photos import fill
from support.tiny_vit import tiny_vit


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that learned green and red, and then blue."""
    place = tmp_path_factory.mktemp("first")
    options = TeachOptions(network=tiny_vit(place / "vit"))
    for counts in ({"red": 5, "green": 5}, {"blue": 3}):
        teach_model(place / "model", fill(place / "images", counts), options)
    return place / "model"


def secrets(model: Path) -> set[bytes]:
    """Hashes and some features of the photos of red."""
    opened = FrozenModel.open(model, 0)
    own, photos = opened.labels == opened.classes.index("red"), opened.photos
    rows = [*photos.hashes[own].numpy(), *photos.features[own].numpy()[:, :16]]
    return {row.tobytes() for row in rows}


def check_opens(model: Path) -> bool:
    """Check that every step opens, and say whether the current one still has the class."""
    for entry in history(model):
        Model.open(model, entry.step)
    return "red" in Model.open(model).classes


@functools.cache
def undisturbed(model: Path) -> list[FrozenModel]:
    """All steps of a model that isn't changed any more."""
    return [FrozenModel.open(model, entry.step) for entry in history(model)]


def check_erased(model: Path, gone: set[bytes], expected: Path) -> None:
    """Check that nothing of the class is left, and that the rest is as expected."""
    for file in model.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert not [secret for secret in gone if secret in content], file
        assert file.suffix != ".json" or b'"red"' not in content
    assert sorted(path.name for path in model.iterdir()) == ["current.json", "lock", "steps"]
    assert len(history(model)) == len(undisturbed(expected)) == 3
    for step, theirs in enumerate(undisturbed(expected)):
        mine = FrozenModel.open(model, step)
        assert mine.classes == theirs.classes
        assert mine.entry.update.classes == theirs.entry.update.classes
        assert all(torch.equal(x, theirs.tensors[name]) for name, x in mine.tensors.items())
        assert mine.photos.jpegs == theirs.photos.jpegs


@pytest.mark.slow
def test_a_kill_before_each_rename_or_removal(first: Path, tmp_path: Path) -> None:
    model, gone = shutil.copytree(first, tmp_path / "model"), secrets(first)
    with copied_before_each_change(model, tmp_path / "copies"):
        erase(model, ["red"])
    check_erased(model, gone, model)
    left, found = sorted((tmp_path / "copies").iterdir()), []
    assert len(left) > 12
    for copy in left:
        found.append(check_opens(copy))
        erase(copy, ["red"])
        check_erased(copy, gone, model)
        shutil.rmtree(copy)
    # From one moment on, the current step is without the class.
    assert found == sorted(found, reverse=True)
    assert {*found} == {True, False}


def test_a_full_disk_is_one_sentence(first: Path, tmp_path: Path) -> None:
    """Each attempt can write a few files more than the one before."""
    model, gone = shutil.copytree(first, tmp_path / "model"), secrets(first)
    for most in (0, 3, 11):
        with full_disk("fsync", most), pytest.raises(ValueError, match="no space left on the disk"):
            erase(model, ["red"])
        check_opens(model)
    erase(model, ["red"])
    check_erased(model, gone, model)
