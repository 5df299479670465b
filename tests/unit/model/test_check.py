"""Checking a model names what is damaged, and repairing keeps all that can be read."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from densekd.cli import app
from densekd.files import write_sealed_json
from densekd.model.check import check_model, repair_model
from densekd.model.frozen.edit import forget
from densekd.model.frozen.erase import erase
from densekd.model.model import Model, history, undo
from densekd.model.options import TeachOptions
from densekd.model.request import TeachObserver
from densekd.model.teach import teach_model
from densekd.training.callbacks import TrainingProgress

from support.photos import TINY, fill, picture


def learn_twice(place: Path, options: TeachOptions) -> Path:
    """A model that learned red and green, and then blue."""
    for counts in ({"red": 8, "green": 8}, {"blue": 8}):
        teach_model(place / "model", fill(place / "images", counts), options)
    return place / "model"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model that is trained, and one on a frozen backbone."""
    kinds = {"trained": TINY, "frozen": TeachOptions()}
    return {kind: learn_twice(tmp_path_factory.mktemp(kind), own) for kind, own in kinds.items()}


@pytest.fixture
def trained(both: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(both["trained"], tmp_path / "trained")


@pytest.fixture
def frozen(both: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(both["frozen"], tmp_path / "frozen")


def damage(model: Path, pattern: str) -> Path:
    (file,) = model.glob(pattern)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return file


def files(model: Path) -> set[bytes]:
    """The contents of all files but those that a command may write."""
    found = [file for file in model.rglob("*") if file.is_file()]
    return {file.read_bytes() for file in found if file.name not in ("lock", "current.json")}


def test_an_intact_model(trained: Path, frozen: Path) -> None:
    for model in (trained, frozen):
        found = check_model(model)
        assert (found.problems, found.current, found.unreadable) == ((), 1, ())
        assert found.opens == found.intact == (0, 1)
        called = CliRunner().invoke(app, ["check", str(model)])
        assert (called.exit_code, called.stdout) == (
            0,
            f"{model}: 2 steps intact; the current one is 1.\n",
        )


def test_a_damaged_state_is_named_and_set_aside(frozen: Path) -> None:
    file = damage(frozen, "steps/001/state-*.safetensors")
    called = CliRunner().invoke(app, ["check", str(frozen)])
    assert called.exit_code == 1
    assert f"{file} is damaged" in called.stdout
    assert "1 step intact; the current one, 1, is damaged." in called.stdout
    before = files(frozen)
    called = CliRunner().invoke(app, ["check", str(frozen), "--repair"])
    assert (called.exit_code, files(frozen)) == (0, before)
    assert "the current one is 0" in called.stdout
    assert Model.open(frozen).classes == ("green", "red")
    assert [entry.step for entry in history(frozen)] == [0]
    assert len([*(frozen / "set-aside").rglob("state*")]) == 2


def test_a_step_number_is_not_used_again_after_a_repair(frozen: Path, tmp_path: Path) -> None:
    damage(frozen, "steps/001/state.json")
    repair_model(frozen)
    update = teach_model(frozen, fill(tmp_path / "images", {"yellow": 8}), TeachOptions())
    assert update.step == 2
    assert [entry.step for entry in history(frozen)] == [0, 2]


def test_a_lost_step_is_no_secret(frozen: Path, caplog: pytest.LogCaptureFixture) -> None:
    (frozen / "steps" / "000" / "state.json").unlink()
    assert [entry.step for entry in history(frozen)] == [1]
    assert "Step 0 is missing" in caplog.text


def test_what_can_predict_is_kept(frozen: Path) -> None:
    expected = Model.open(frozen).predict([picture("blue", 99)])
    damage(frozen, "steps/000/photos-*.safetensors")
    found, _ = repair_model(frozen)
    assert (found.opens, found.intact) == ((0, 1), ())
    assert Model.open(frozen).predict([picture("blue", 99)]) == expected


def test_a_step_that_was_gone_back_to_is_kept_if_none_is_intact(frozen: Path) -> None:
    undo(frozen)
    damage(frozen, "steps/000/photos-*.safetensors")
    found, _ = repair_model(frozen)
    assert (found.opens, found.intact, found.best) == ((0, 1), (), 0)
    assert Model.open(frozen).step == 0


def test_a_step_without_classes_cannot_predict(frozen: Path) -> None:
    forget(frozen, ["red", "green"])
    undo(frozen)
    erase(frozen, ["blue"])
    assert (check_model(frozen).problems, check_model(frozen).intact) == ((), (0, 1, 3))
    damage(frozen, "steps/000/photos-*.safetensors")
    found = check_model(frozen)
    assert found.opens == (0, 1, 3)
    (problem,) = [each for each in found.problems if each.startswith("Step 2")]
    assert "has no class left, and can't be taught" in problem


def test_a_repair_does_not_go_to_a_step_without_classes(frozen: Path) -> None:
    forget(frozen, ["red", "green"])
    undo(frozen)
    erase(frozen, ["blue"])
    damage(frozen, "steps/003/state.json")
    repair_model(frozen)
    assert Model.open(frozen).step == 1


def test_damage_of_an_older_step_is_found_before_training(trained: Path, tmp_path: Path) -> None:
    class Training(TeachObserver):
        def report(self, report: TrainingProgress) -> None:
            pytest.fail("it trains")

    damage(trained, "steps/000/kept-*.safetensors")
    with pytest.raises(ValueError, match=r"kept-.* is damaged.*`densekd check .*undo"):
        teach_model(trained, fill(tmp_path / "images", {"yellow": 8}), TINY, Training())


@pytest.mark.parametrize("place", ["step", "sha256"])
def test_an_edited_pointer_is_refused_and_repaired(place: str, frozen: Path) -> None:
    file = frozen / "current.json"
    content = json.loads(file.read_text())
    content[place] = {"step": 0, "sha256": "0" * 64}[place]
    file.write_text(json.dumps(content, indent=1) + "\n")
    with pytest.raises(ValueError, match=r"current\.json isn't what was saved; `densekd check"):
        Model.open(frozen)
    assert check_model(frozen).current is None
    repair_model(frozen)
    assert Model.open(frozen).step == 1
    assert check_model(frozen).problems == ()


def test_a_pointer_of_an_earlier_version_has_no_checksum(frozen: Path) -> None:
    (frozen / "current.json").write_text('{"format": 1, "step": 0, "steps": 2}')
    assert Model.open(frozen).step == 0


def test_a_damaged_note_of_an_erasure(frozen: Path) -> None:
    file = frozen / "erasing.json"
    write_sealed_json(file, {"step": 2, "hashes": [], "names": ["red"]})
    assert check_model(frozen).problems == ()
    file.write_bytes(file.read_bytes().replace(b"red", b"rod"))
    (problem,) = check_model(frozen).problems
    assert "erasing.json doesn't say what is being erased" in problem
    assert problem.endswith("erase the same classes and photos again.")
    repair_model(frozen)
    assert not file.exists()


def test_nothing_to_check(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There is no model in"):
        check_model(tmp_path)
    with pytest.raises(ValueError, match="There is no model in"):
        repair_model(tmp_path)
    assert [*tmp_path.iterdir()] == []
