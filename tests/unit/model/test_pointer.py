"""No state is lost with the file that says which of them is current."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from densekd.files import write_atomically
from densekd.model.frozen.edit import rename_class
from densekd.model.frozen.erase import erase
from densekd.model.model import Model, history, undo
from densekd.model.options import TeachOptions
from densekd.model.pointer import Pointer, read_pointer, revision, step_numbers, write_pointer
from densekd.model.teach import teach_model
from densekd.model.trained.model import TrainedModel

from support.photos import TINY, fill, picture


@pytest.fixture(scope="module", params=[TINY, TeachOptions()], ids=["trained", "frozen"])
def taught(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that learned red and green, and then blue."""
    place = tmp_path_factory.mktemp("taught")
    for counts in ({"red": 8, "green": 8}, {"blue": 8}):
        teach_model(place / "model", fill(place / "images", counts), request.param)
    return place / "model"


@pytest.fixture
def model(taught: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return shutil.copytree(taught, tmp_path / "model")


def states(model: Path) -> dict[str, bytes]:
    """All files of all steps."""
    files = (file for file in (model / "steps").rglob("*") if file.is_file())
    return {str(file.relative_to(model)): file.read_bytes() for file in files}


def damage(model: Path, pattern: str) -> None:
    (file,) = model.glob(pattern)
    file.write_bytes(file.read_bytes()[:-1])


def lose(model: Path, content: str | None) -> None:
    if content is None:
        (model / "current.json").unlink()
    else:
        (model / "current.json").write_text(content)


LOST = pytest.mark.parametrize("content", [None, "", "\0" * 30, '{"format": 1, "st', "[" * 50_000])


@LOST
def test_a_lost_pointer_is_rebuilt_from_the_states(
    content: str | None, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = Model.open(model).predict([picture("blue", 99)])
    lose(model, content)
    assert Model.open(model).predict([picture("blue", 99)]) == before
    assert [entry.current for entry in history(model)] == [False, True]
    (told,) = caplog.messages
    assert f"{model / 'current.json'} is" in told
    assert "the newest intact step, 1, is used" in told
    assert read_pointer(model) is None  # reading writes nothing


@LOST
def test_no_state_is_lost_with_the_pointer(
    content: str | None, model: Path, tmp_path: Path
) -> None:
    images, before = fill(tmp_path / "images", {"yellow": 8}), states(model)
    options = TINY if isinstance(Model.open(model), TrainedModel) else TeachOptions()
    lose(model, content)
    assert teach_model(model, images, options).step == 2
    assert {file: content for file, content in states(model).items() if file in before} == before
    assert read_pointer(model) == Pointer(2, 3)


def test_a_damaged_newest_state_is_passed_over_and_kept(model: Path) -> None:
    damage(model, "steps/001/state-*.safetensors")
    lose(model, None)
    assert Model.open(model).classes == ("green", "red")
    before = states(model)
    assert undo(model, 0).step == 0
    assert read_pointer(model) == Pointer(0, 2)
    assert states(model) == before


def test_without_an_intact_state_nothing_is_taught(model: Path, tmp_path: Path) -> None:
    for step in ("000", "001"):
        damage(model, f"steps/{step}/state.json")
    lose(model, None)
    before, images = states(model), fill(tmp_path / "images", {"yellow": 8})
    for call in (lambda: Model.open(model), lambda: teach_model(model, images, TeachOptions())):
        with pytest.raises(ValueError, match=r"is missing, and no step in .* is intact"):
            call()
    assert states(model) == before


@pytest.mark.parametrize(
    "content", ["{}", '{"format": 1, "step": 5, "steps": 2}', '{"format": 2}', "[]", '"text"']
)
def test_a_pointer_that_says_what_cannot_be_is_refused(
    content: str, model: Path, tmp_path: Path
) -> None:
    lose(model, content)
    before, images = states(model), fill(tmp_path / "images", {"yellow": 8})
    for call in (lambda: Model.open(model), lambda: teach_model(model, images, TeachOptions())):
        with pytest.raises(ValueError, match=r"current\.json isn't what was saved"):
            call()
    assert states(model) == before


def test_a_state_beyond_the_pointer_is_not_overwritten(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an old copy of the pointer was brought back."""
    (model / "current.json").write_text(json.dumps({"format": 1, "step": 0, "steps": 1}))
    before = states(model)
    options = TINY if isinstance(Model.open(model), TrainedModel) else TeachOptions()
    teach_model(model, fill(tmp_path / "images", {"yellow": 8}), options)
    assert Model.open(model).classes == ("green", "red", "yellow")
    (aside,) = (model / "set-aside").iterdir()
    kept = states(aside)
    assert kept == {file: content for file, content in before.items() if "001" in file}
    assert f"it is now in {aside}" in caplog.text


def test_erasing_removes_what_was_set_aside(model: Path) -> None:
    if isinstance(Model.open(model), TrainedModel):
        pytest.skip("it keeps no photos")
    undo(model, 0)
    write_pointer(model, Pointer(0, 1))
    rename_class(model, "red", "crimson")
    assert (model / "set-aside").exists()
    erase(model, ["green"])
    assert not (model / "set-aside").exists()
    assert Model.open(model).classes == ("crimson",)


def test_what_a_killed_commit_left_is_removed(model: Path, tmp_path: Path) -> None:
    """The process was killed after the step counted, and before its checkpoints were removed."""
    place = tmp_path / "pending"

    def remembering(folder: Path, **_: object) -> None:
        shutil.copytree(folder, place, dirs_exist_ok=True)

    options = TINY if isinstance(Model.open(model), TrainedModel) else TeachOptions()
    images = fill(tmp_path / "images", {"yellow": 8})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", remembering)
        teach_model(model, images, options)
    assert (model / "pending").exists()
    torch.save(0, model / ".x.12345678.tmp")
    other = shutil.copytree(model, tmp_path / "other")
    undo(model, 0)
    undo(model, 2)
    teach_model(other, images, options)  # there is nothing else left to do
    for left in (model, other):
        assert sorted(path.name for path in left.iterdir()) == ["current.json", "lock", "steps"]


def test_folders_that_only_look_like_steps_are_ignored(tmp_path: Path) -> None:
    for name in ("000", "1x", "1\u00b2"):  # a superscript is a digit, but no number
        (tmp_path / "steps" / name).mkdir(parents=True)
    assert step_numbers(tmp_path) == [0]


def test_an_unfinished_update_is_not_removed(model: Path) -> None:
    waiting = model / "pending" / "0123456789ab" / "epochs"
    waiting.mkdir(parents=True)
    for left in ("edit/state", "corrected", "replaced"):  # the last two by earlier versions
        (model / "pending" / left).mkdir(parents=True)
    undo(model)
    assert [*(model / "pending").rglob("*")] == [waiting.parent, waiting]


def test_a_repeated_update_of_a_model_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = tmp_path / "model", fill(tmp_path / "images", {"red": 2, "green": 2})
    update = teach_model(model, images, TeachOptions())
    (model / "pending" / "edit").mkdir(parents=True)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    assert teach_model(model, images, TeachOptions()) == update
    assert (model / "pending" / "edit").exists()


def test_a_revision_tells_another_step_and_a_rewritten_state(model: Path) -> None:
    assert revision(model / "none") is None
    found = [revision(model), revision(model)]
    assert found[0] == found[1]
    undo(model)
    found.append(revision(model))
    state = model / "steps" / "000" / "state.json"
    write_atomically(state, state.read_bytes())
    found.append(revision(model))
    (model / "current.json").write_text("{}")
    found.append(revision(model))
    (model / "current.json").unlink()
    found.append(revision(model))
    write_atomically(
        state, state.read_bytes()
    )  # the model may be this step, if the other is damaged
    found.append(revision(model))
    assert len({*found}) == 6
    assert None not in found
