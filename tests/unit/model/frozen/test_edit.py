"""Forgetting, renaming and merging classes of a model that keeps its photos' features."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from densekd.model.frozen.edit import file_hash, forget, merge_classes, rename_class
from densekd.model.frozen.model import FrozenModel, is_tested
from densekd.model.model import Model, history, model_info, undo
from densekd.model.options import TeachOptions
from densekd.model.store import Edit, Store
from densekd.model.teach import teach_model
from densekd.training.checkpoint import load_state, save_state

from support.photos import TINY, fill, picture

DEFAULT = TeachOptions()
COUNTS = {"red": 12, "green": 12}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that learned green and red, then blue and yellow, and its photos."""
    place = tmp_path_factory.mktemp("first")
    teach_model(place / "model", fill(place / "first", COUNTS), DEFAULT)
    teach_model(place / "model", fill(place / "second", {"blue": 6, "yellow": 7}), DEFAULT)
    return place


@pytest.fixture
def model(place: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(place / "model", tmp_path / "model"))


def shown(model: Path, *names: str) -> list[str | None]:
    opened = FrozenModel.open(model)
    opened.refused = 0
    return [guesses.name for guesses in opened.predict([picture(n, 99) for n in names])]


def test_a_forgotten_class_is_as_if_it_was_never_taught(model: Path, place: Path) -> None:
    update = forget(model, ["red"])
    assert (update.step, update.learned, update.images) == (2, (), 0)
    assert update.edit == Edit("forgot", ("red",), 12)
    assert [each.name for each in update.classes] == ["green", "blue", "yellow"]
    opened, other = FrozenModel.open(model), place / "other"
    teach_model(other, fill(place / "only", {"green": 12}), DEFAULT)
    teach_model(other, place / "second", DEFAULT)
    without = FrozenModel.open(other)
    assert opened.classes == without.classes == ("green", "blue", "yellow")
    # The same photos, of which the same ones are held out, give the same heads, but for the last
    # bits of features that were computed beside others.
    for name, tensor in without.tensors.items():
        if name != "labels":
            assert torch.allclose(opened.tensors[name], tensor, atol=2e-2), name
    assert opened.temperature == pytest.approx(without.temperature, rel=1e-2)
    assert opened.labels.tolist() == [0] * 12 + [-1] * 12 + [1] * 6 + [2] * 7


def test_undo_brings_it_back(model: Path) -> None:
    before = FrozenModel.open(model)
    forget(model, ["red", "blue"])
    assert Model.open(model).classes == ("green", "yellow")
    undo(model)
    assert Model.open(model).classes == before.classes
    assert shown(model, "red", "blue") == ["red", "blue"]


def test_a_forgotten_class_can_be_taught_again(model: Path, place: Path) -> None:
    forget(model, ["red", "green"])
    update = teach_model(model, place / "first", DEFAULT)
    assert update.learned == ("green", "red")
    assert Model.open(model).classes == ("blue", "yellow", "green", "red")
    assert [each.step for each in model_info(model).classes] == [1, 1, 3, 3]


def test_accuracy_before_is_that_of_the_model_before(model: Path) -> None:
    update = forget(model, ["yellow"])
    assert update.before is not None
    assert (update.before.new, update.after.new) == (None, None)
    assert (update.before.all, update.after.all) == (1.0, 1.0)
    assert all(each.before is not None for each in update.classes)
    assert [each.tested for each in update.classes] == [2, 2, 1]


def test_single_photos_are_forgotten(model: Path, place: Path) -> None:
    files = [place / "first" / "red" / f"{number:04}.png" for number in (3, 5)]
    update = forget(model, [], files)
    assert update.edit == Edit("forgot", (), 2)
    assert str(update.edit) == "forgot 2 photos"
    opened = FrozenModel.open(model)
    assert len(opened.classes) == 4
    assert int((opened.labels < 0).sum()) == 2
    with pytest.raises(ValueError, match=r"doesn't have the photo .*0003\.png"):
        forget(model, [], files)


def test_a_class_of_which_only_test_photos_are_left_learns_from_them(
    model: Path, place: Path
) -> None:
    opened = FrozenModel.open(model)
    own = (opened.labels == 2) & ~opened.photos.test
    hashes = {row.tobytes() for row in opened.photos.hashes[own].numpy()}
    files = {file_hash(file): file for file in (place / "second" / "blue").iterdir()}
    assert (len(hashes), len(files)) == (5, 6)
    learned = [files.pop(each) for each in hashes]
    update = forget(model, [], learned)
    assert [each.tested for each in update.classes] == [2, 2, 0, 1]
    assert Model.open(model).training_counts() == [10, 10, 1, 6]
    assert len(Model.open(model).stored_images(tested=True)) == 5
    with pytest.raises(ValueError, match="No photo of 'blue' would be left"):
        forget(model, [], list(files.values()))


def test_which_photos_are_held_out() -> None:
    test = torch.tensor([True, False, True, True, False, True])
    labels = torch.tensor([0, 0, 1, 1, -1, -1])
    assert is_tested(test, labels).tolist() == [True, False, False, False, False, False]


def test_a_class_is_renamed(model: Path) -> None:
    before = FrozenModel.open(model)
    update = rename_class(model, "red", "dark red é")
    assert str(update.edit) == "renamed red to dark red é"
    assert update.before == update.after
    opened = FrozenModel.open(model)
    assert opened.classes == ("green", "dark red é", "blue", "yellow")
    assert torch.equal(opened.head.weight, before.head.weight)
    assert torch.equal(opened.labels, before.labels)
    assert shown(model, "red") == ["dark red é"]
    assert [each.step for each in model_info(model).classes] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "name", ["", "  ", "a/b", "a\\b", "..", "a\nb", "a\x1b[0m", "a\u2028b", ".hat", " hat", "hat "]
)
def test_names_that_no_class_can_have(model: Path, name: str) -> None:
    with pytest.raises(ValueError, match="can't be called"):
        rename_class(model, "red", name)


def test_a_name_that_no_folder_can_have_is_too_long(model: Path) -> None:
    with pytest.raises(ValueError, match=r"too long for a folder; .* at most 255 bytes"):
        rename_class(model, "red", 128 * "é")
    assert rename_class(model, "red", 255 * "a").step == 2


def test_a_name_that_differs_by_case_only_is_warned_of(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rename_class(model, "red", "Red")
    assert caplog.text == ""
    rename_class(model, "green", "RED")
    assert "'RED' and the known 'Red' differ only by case" in caplog.text


def test_names_that_are_taken_or_unknown(model: Path) -> None:
    with pytest.raises(ValueError, match="knows 'green' already; `densekd merge`"):
        rename_class(model, "red", "green")
    with pytest.raises(ValueError, match="knows no class 'rad'; did you mean 'red'"):
        rename_class(model, "rad", "other")
    with pytest.raises(ValueError, match=rf"knows no class 'x'; `densekd info {model}` lists"):
        forget(model, ["red", "x"])
    with pytest.raises(ValueError, match="knows no class 'x'"):
        merge_classes(model, "red", "x")
    with pytest.raises(ValueError, match="can't be merged into itself"):
        merge_classes(model, "red", "red")
    assert len(history(model)) == 2


def test_classes_are_merged(model: Path) -> None:
    update = merge_classes(model, "green", "blue")
    assert str(update.edit) == "merged green into blue"
    assert [(each.name, each.tested) for each in update.classes] == [
        ("red", 2),
        ("blue", 3),
        ("yellow", 1),
    ]
    # What the model before called green counts as blue.
    assert update.before is not None
    assert update.before.all == 1.0
    opened = FrozenModel.open(model)
    assert opened.labels.tolist() == [1] * 12 + [0] * 12 + [1] * 6 + [2] * 7
    assert shown(model, "green", "blue", "red") == ["blue", "blue", "red"]
    assert [each.step for each in model_info(model).classes] == [0, 1, 1]


def test_edits_follow_each_other(model: Path) -> None:
    forget(model, ["green"])
    rename_class(model, "blue", "green")
    merge_classes(model, "yellow", "green")
    assert Model.open(model).classes == ("red", "green")
    assert FrozenModel.open(model).labels.tolist() == [-1] * 12 + [0] * 12 + [1] * 13
    assert [str(entry.update.edit) for entry in history(model)[2:]] == [
        "forgot green",
        "renamed blue to green",
        "merged yellow into green",
    ]


def test_the_last_class_is_not_forgotten(model: Path) -> None:
    with pytest.raises(ValueError, match="would have no class left; name fewer"):
        forget(model, ["red", "green", "blue", "yellow"])
    with pytest.raises(ValueError, match="Name a class or a photo"):
        forget(model, [])
    forget(model, ["red", "green", "blue"])
    assert shown(model, "red") == ["yellow"]


def test_records_without_an_edit_are_read(model: Path) -> None:
    store = Store(model)
    facts = store.facts(0)
    assert facts["update"]["edit"] is None
    del facts["update"]["edit"]
    path = store.path(0) / "state"
    save_state(path, load_state(path)._replace(facts=facts))
    assert "edit" not in json.loads((model / "steps/000/state.json").read_text())["facts"]["update"]
    assert history(model)[0].update.edit is None


def test_models_trained_by_a_method_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    teach_model(model, fill(tmp_path / "images", {"red": 6, "green": 6}), TINY)
    with pytest.raises(ValueError, match=r"trained by a method.*`densekd learn NEW_MODEL FOLDER`"):
        forget(model, ["red"])
    with pytest.raises(ValueError, match="There is no model in"):
        rename_class(tmp_path / "none", "red", "blue")
    assert not (tmp_path / "none").exists()


def test_another_process_that_changes_the_model_is_in_the_way(model: Path) -> None:
    with Store(model).locked(), pytest.raises(ValueError, match="Another process is changing"):
        forget(model, ["red"])
