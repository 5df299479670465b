"""Nothing is left of what is erased, in any file of a model."""

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from densekd.model.frozen.backbone import pretrained_backbone
from densekd.model.frozen.edit import file_hash, forget, merge_classes, rename_class
from densekd.model.frozen.erase import also_erased, erase
from densekd.model.frozen.model import FrozenModel
from densekd.model.frozen.photos import load_photos
from densekd.model.model import Model, history, model_info, undo
from densekd.model.options import TeachOptions
from densekd.model.request import Plan, TeachObserver
from densekd.model.store import Store
from densekd.model.teach import teach_model
from densekd.training.callbacks import Stopped
from densekd.training.checkpoint import load_state, save_state

from support.photos import fill, picture

DEFAULT = TeachOptions()
# Long enough not to occur by chance: 8 features of half precision, or 16 bytes of an image.
PIECE = 16


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that learned red, then green and blue, and its photos."""
    place = tmp_path_factory.mktemp("first")
    teach_model(place / "model", fill(place / "first", {"red": 8}), DEFAULT)
    teach_model(place / "model", fill(place / "second", {"green": 8, "blue": 7}), DEFAULT)
    return place


@pytest.fixture
def model(place: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(place / "model", tmp_path / "model"))


def pieces(content: bytes) -> Iterator[bytes]:
    """A photo's content, piece by piece, without those that any image may have."""
    for start in range(0, len(content) - PIECE + 1, PIECE):
        piece = content[start : start + PIECE]
        if len({*piece}) > 6:
            yield piece


def traces(model: Path, name: str, step: int | None = None) -> set[bytes]:
    """What must not be left of a class: of its photos and of its rows in the heads."""
    opened = FrozenModel.open(model, step)
    own = (opened.labels == opened.classes.index(name)).nonzero().flatten()
    found = set[bytes]()
    for place in own.tolist():
        found.update(pieces(opened.photos.features[place].numpy().tobytes()))
        found.add(opened.photos.hashes[place].numpy().tobytes())
        found.add(opened.photos.hashes[place].numpy().tobytes().hex().encode())
        jpeg = opened.photos.jpegs[place]
        # What comes before the first scan is the same in all images of a size and quality.
        found.update(pieces(jpeg[jpeg.index(b"\xff\xda") + 14 :]))
    for head in (opened.head, opened.evaluation_head):
        found.update(pieces(head.weight[opened.classes.index(name)].numpy().tobytes()))
    return found


@functools.cache
def pretrained() -> bytes:
    """The weights of a network that has seen none of the photos."""
    with tempfile.TemporaryDirectory() as folder:
        pretrained_backbone("lite0").save(Path(folder) / "backbone")
        (file,) = Path(folder).glob("*.safetensors")
        return file.read_bytes()


def left_in(folder: Path, traces: set[bytes]) -> list[str]:
    """The files in which a piece occurs, at any place."""
    found = []
    for file in folder.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        # Searching the weights would take seconds.
        if content != pretrained() and any(piece in content for piece in traces):
            found.append(file.name)
    return found


def test_no_byte_is_left_in_any_file(model: Path) -> None:
    gone = traces(model, "green")
    kept = traces(model, "blue")
    assert len(gone) > 8 * 50
    assert len(left_in(model, gone)) >= 2
    update = erase(model, ["green"])
    assert left_in(model, gone) == []
    assert len(left_in(model, {x for x in kept if len(x) == 32})) == 1  # hashes of blue
    assert not any(b"green" in file.read_bytes() for file in model.rglob("*") if file.is_file())
    assert str(update.edit) == "erased 8 photos"
    assert [each.name for each in update.classes] == ["red", "blue"]
    assert update.step == Store(model).require_pointer().step == 2
    assert {file.name for file in model.iterdir()} == {"current.json", "lock", "steps"}


def test_earlier_steps_are_as_if_it_was_never_taught(
    model: Path, place: Path, tmp_path: Path
) -> None:
    erase(model, ["green"])
    other = tmp_path / "other"
    teach_model(other, place / "first", DEFAULT)
    teach_model(other, fill(tmp_path / "second", {"blue": 7}), DEFAULT)
    for mine in (FrozenModel.open(model, 1), FrozenModel.open(model, 2)):
        theirs = FrozenModel.open(other)
        assert mine.classes == theirs.classes == ("red", "blue")
        assert mine.labels.tolist() == [0] * 8 + [1] * 7 + [-1] * 8
        for name, tensor in theirs.tensors.items():
            if name != "labels":
                assert torch.equal(mine.tensors[name], tensor), name
    rebuilt, update = history(model)[1].update, history(other)[1].update
    assert (rebuilt.learned, rebuilt.classes) == (("blue",), update.classes)
    assert (rebuilt.before, rebuilt.after) == (update.before, update.after)
    assert model_info(model, 1).classes == model_info(other, 1).classes


def test_photos_of_a_step_whose_state_is_lost(model: Path) -> None:
    """Its photos are still needed by later steps, so they are erased, not removed."""
    gone = traces(model, "red")
    (model / "steps" / "000" / "state.json").unlink()
    erase(model, ["red"])
    assert left_in(model, gone) == []
    assert Model.open(model).classes == Model.open(model, 1).classes == ("blue", "green")


def test_a_step_that_is_not_concerned_stays_as_it_is(model: Path) -> None:
    before = {file.name: file.read_bytes() for file in (model / "steps/000").iterdir()}
    erase(model, ["green"])
    assert before == {file.name: file.read_bytes() for file in (model / "steps/000").iterdir()}


def test_a_step_without_any_class_cannot_be_opened(model: Path, place: Path) -> None:
    gone = traces(model, "red", 0)
    erase(model, ["red"])
    assert left_in(model, gone) == []
    assert history(model)[0].update.classes == ()
    with pytest.raises(ValueError, match=r"Step 0 of .* has no class left"):
        Model.open(model, 0)
    with pytest.raises(ValueError, match="has no class left"):
        undo(model, 0)
    undo(model)
    assert Model.open(model).classes == ("blue", "green")
    # The photos can be taught again: nothing says that they were.
    assert teach_model(model, place / "first", DEFAULT).learned == ("red",)


def test_photos_are_erased_under_all_names_they_had(model: Path) -> None:
    gone = traces(model, "green") | traces(model, "red")
    rename_class(model, "green", "Anna")
    merge_classes(model, "red", "Anna")
    erase(model, ["Anna"])
    assert left_in(model, gone) == []
    assert [entry.update.learned for entry in history(model)] == [(), ("blue",), (), (), ()]
    assert [str(entry.update.edit) for entry in history(model)[2:]] == [
        "renamed (erased) to (erased)",
        "merged (erased) into (erased)",
        "erased 16 photos",
    ]
    for file in model.rglob("*.json"):
        assert "Anna" not in file.read_text()
        assert "green" not in file.read_text()


def test_a_class_that_was_forgotten_before(model: Path) -> None:
    gone = traces(model, "green")
    forget(model, ["green"])
    before = FrozenModel.open(model)
    update = erase(model, ["green"])
    assert left_in(model, gone) == []
    assert update.step == 3
    assert torch.equal(FrozenModel.open(model).head.weight, before.head.weight)
    assert str(history(model)[2].update.edit) == "forgot (erased)"


def test_single_photos_and_other_branches(model: Path, place: Path, tmp_path: Path) -> None:
    file = place / "second" / "green" / "0003.png"
    undo(model)
    images = fill(tmp_path / "third", {"yellow": 4})
    shutil.copy(file, images / "yellow" / "other name.png")
    teach_model(model, images, DEFAULT)
    update = erase(model, [], [file])
    assert str(update.edit) == "erased 1 photo"
    for step in (1, 2):
        hashes = load_photos(model / "steps" / f"{step:03}" / "photos").hashes.numpy()
        assert file_hash(file) not in {row.tobytes() for row in hashes}
        assert len(hashes) == len(FrozenModel.open(model, step).photos) - 8
    assert FrozenModel.open(model, 1).training_counts() == [7, 6, 6]
    assert Model.open(model).classes == ("red", "yellow")


def test_unfinished_updates_are_erased_too(model: Path, tmp_path: Path) -> None:
    class Stopping(TeachObserver):
        read, hashed = 0, False

        def planned(self, plan: Plan) -> None:
            self.hashed = True

        def reading(self, done: int, total: int) -> None:
            self.read = done if self.hashed else 0

        def stop(self) -> bool:
            return self.read >= 16

    with pytest.raises(Stopped):
        teach_model(model, fill(tmp_path / "third", {"yellow": 60}), DEFAULT, Stopping())
    assert len([*(model / "pending").rglob("*.safetensors")]) == 1
    shutil.copytree(model / "steps" / "001", model / "steps" / "007")
    (model / "steps" / "001" / ".state.json.12345678.tmp").write_text("green")
    erase(model, ["green"])
    assert not (model / "pending").exists()
    assert sorted(path.name for path in (model / "steps").iterdir()) == ["000", "001", "002"]
    assert [*model.rglob("*.tmp")] == []


def test_unfinished_updates_may_have_what_no_step_has(model: Path, tmp_path: Path) -> None:
    features = model / "pending" / "key" / "features"
    features.mkdir(parents=True)
    with pytest.raises(ValueError, match=r"No step .* has 'yellow', so only unfinished .* removed"):
        erase(model, ["yellow"])
    assert not (model / "pending").exists()
    with pytest.raises(ValueError, match="has 'yellow'; check the names"):
        erase(model, ["yellow"])
    assert len(history(model)) == 2


def test_classes_that_were_not_named_are_said(
    model: Path, place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rename_class(model, "green", "lime")
    more = fill(tmp_path / "third", {"red": 4}, first=50)
    shutil.copy(place / "second" / "blue" / "0000.png", more / "red" / "blue.png")
    teach_model(model, more, TeachOptions(known="add"))
    said = (
        "This also erases all 8 photos of 'lime', which were once called 'green'.",
        "This also erases 1 of the 13 photos of 'red', which was once called 'blue'.",
    )
    assert also_erased(model, ["green", "blue"]) == said
    assert also_erased(model, ["green", "lime"]) == ()
    photo = place / "second" / "blue" / "0000.png"
    assert also_erased(model, ["blue"], [photo]) == also_erased(model, []) == ()
    assert also_erased(model, ["never taught"]) == ()
    erase(model, ["green", "blue"])
    assert [each for each in said if each in caplog.text] == [*said]
    assert Model.open(model).classes == ("red",)


def test_a_network_that_was_trained_on_the_photos_is_mentioned(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in (model / "steps" / "000").glob("backbone*"):
        shutil.copy(file, model / "steps" / "001")
    path = model / "steps" / "001" / "state"
    state = load_state(path)
    save_state(path, state._replace(facts={**state.facts, "backbone": 1}))
    erase(model, ["red"])
    assert caplog.text == ""
    erase(model, ["green"])
    assert "The network of step 1 was fine-tuned on photos that are erased now" in caplog.text


def test_what_cannot_be_erased(model: Path, tmp_path: Path) -> None:
    picture("red", 77).save(tmp_path / "other.png")
    with pytest.raises(ValueError, match=r"No step of .* has 'x', .*other.png'"):
        erase(model, ["red", "x"], [tmp_path / "other.png"])
    with pytest.raises(ValueError, match="would have no class left; delete the folder"):
        erase(model, ["red", "green", "blue"])
    undo(model)  # to a step that knows only red; the folder has more
    with pytest.raises(ValueError, match=r"no class left; go to a step .* --to N` first"):
        erase(model, ["red"])
    with pytest.raises(ValueError, match="Name a class or a photo"):
        erase(model, [])
    assert len(history(model)) == 2


def test_until_it_is_finished_nothing_else_changes_the_model(model: Path, tmp_path: Path) -> None:
    more = fill(tmp_path / "third", {"yellow": 2})
    erasing: dict[str, object] = {"step": 2, "hashes": [], "names": ["green"]}
    hashes = FrozenModel.open(model).photos.hashes[FrozenModel.open(model).labels == 2]
    erasing["hashes"] = [row.tobytes().hex() for row in hashes.numpy()]
    Store(model).erasing.write_text(json.dumps(erasing))
    for change in (
        lambda: undo(model),
        lambda: forget(model, ["red"]),
        lambda: teach_model(model, more, DEFAULT),
    ):
        with pytest.raises(ValueError, match=r"was interrupted; `densekd forget .* --everywhere`"):
            change()
    # Finishes one, and goes on with the other.
    assert erase(model, ["green", "blue"]).step == 3
    assert Model.open(model).classes == ("red",)
    assert [entry.update.learned for entry in history(model)] == [("red",), (), (), ()]


def test_a_class_of_which_an_unfinished_erasure_leaves_photos(model: Path) -> None:
    gone, opened = traces(model, "green"), FrozenModel.open(model)
    first = opened.photos.hashes[opened.labels == opened.classes.index("green")][0]
    # As if the class had no other photo in some earlier step.
    erasing = {"step": 2, "hashes": [first.numpy().tobytes().hex()], "names": ["green"]}
    Store(model).erasing.write_text(json.dumps(erasing))
    update = erase(model, ["green"])
    assert left_in(model, gone) == []
    assert str(update.edit) == "erased 7 photos"


def test_what_cannot_be_deleted_keeps_an_erasure_unfinished(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = traces(model, "green")
    shutil.copytree(model / "steps" / "001", model / "set-aside" / "x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", _refused)
        with pytest.raises(PermissionError):
            erase(model, ["green"])
    assert Store(model).erasing.exists()
    erase(model, [])
    assert left_in(model, gone) == []


def test_an_interrupted_erasure_of_a_photo_that_is_deleted(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photo = tmp_path / "photo.png"
    picture("green", 3).save(photo)
    erasing = {"step": 2, "hashes": [file_hash(photo).hex()], "names": []}
    Store(model).erasing.write_text(json.dumps(erasing))
    photo.unlink()
    assert str(erase(model, [], [photo]).edit) == "erased 1 photo"
    assert not Store(model).erasing.exists()
    assert f"There is no file {photo}" in caplog.text
    with pytest.raises(FileNotFoundError):  # nothing is left to finish
        erase(model, [], [photo])


def _refused(*_: object, **__: object) -> None:
    raise PermissionError


def test_a_step_whose_photos_are_lost(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = traces(model, "green")
    for file in (model / "steps" / "001").glob("photos*"):
        file.unlink()
    with pytest.raises(ValueError, match=r"Photos of step 1 .* are lost.*densekd undo"):
        erase(model, ["green"])
    undo(model)
    teach_model(model, fill(tmp_path / "third", {"yellow": 3}), DEFAULT)
    erase(model, ["yellow"])
    # Its head learned from photos that can no longer be told from others.
    assert left_in(model, gone) == []
    assert "Step 1 is deleted" in caplog.text
    assert Model.open(model).classes == ("red",)
    assert [entry.step for entry in history(model)] == [0, 2, 3]
