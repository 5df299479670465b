"""The commands that change what a model was taught, and `learn --known add`."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from densekd.cli import app

from support.photos import fill


def call(*arguments: str | Path, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def done(*arguments: str | Path) -> str:
    """What a call that succeeds prints."""
    result = call(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def known(model: Path) -> list[str]:
    return [each["name"] for each in json.loads(done("info", model, "--json"))["classes"]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three classes, and its photos."""
    place = tmp_path_factory.mktemp("taught")
    done("learn", place / "model", fill(place / "images", {"red": 10, "green": 10, "blue": 10}))
    return place


@pytest.fixture
def model(place: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(place / "model", tmp_path / "model"))


def test_forget_undo_rename_and_merge(model: Path, place: Path) -> None:
    told = done("forget", model, "red")
    assert told.startswith(f"Step 1: {model} forgot red in ")
    assert "It knows 2 classes." in told
    rows = [line.split() for line in told.splitlines()]
    assert ["all", "classes", "4", "100.0", "100.0"] in rows
    assert not any(row[:2] == ["new", "classes"] for row in rows)
    assert known(model) == ["blue", "green"]
    done("undo", model)
    assert known(model) == ["blue", "green", "red"]
    assert "renamed red to rouge" in done("rename", model, "red", "rouge")
    assert "merged blue into green" in done("merge", model, "blue", "green")
    photo = place / "images" / "green" / "0000.png"
    assert "forgot 1 photo in" in done("forget", model, "--photo", photo)
    assert known(model) == ["green", "rouge"]
    told = done("history", model)
    for deed in ("learned blue, green, red", "forgot red", "renamed red to rouge", "forgot 1 ph"):
        assert deed in told


def test_json(model: Path) -> None:
    result = call("rename", model, "red", "rouge", "--json")
    update = json.loads(result.stdout)
    assert (update["step"], update["images"], update["learned"]) == (1, 0, [])
    edit = {"action": "renamed", "classes": ["red"], "photos": 10, "into": "rouge"}
    assert update["edit"] == edit
    assert "Step 1: " in result.stderr
    assert json.loads(done("history", model, "--json"))[1]["update"]["edit"] == edit


def test_more_photos_of_known_classes_alone(model: Path, tmp_path: Path) -> None:
    more = fill(tmp_path / "more", {"red": 10}, first=50)
    refused = call("learn", model, more)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--known add" in refused.stderr
    told = done("learn", model, more, "--known", "add")
    assert told.startswith(f"Step 1: {model} learned more of red from 8 images in ")
    assert "more of red" in done("history", model)
    counts = {
        e["name"]: e["exemplars"] for e in json.loads(done("info", model, "--json"))["classes"]
    }
    assert counts == {"blue": 8, "green": 8, "red": 16}


def test_errors_are_one_sentence(model: Path) -> None:
    for arguments, words in (
        (("forget", model), "Name a class or a photo"),
        (("forget", model, "rad"), "did you mean 'red'?"),
        (("rename", model, "red", "green"), "`densekd merge`"),
        (("merge", model, "red", "red"), "into itself"),
        (("forget", model, "--photo", "none.jpg"), "No such file"),
    ):
        result = call(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert words in result.stderr
        assert result.stderr.count("\n") == 1
    assert known(model) == ["blue", "green", "red"]


def test_forget_everywhere_asks_first(model: Path) -> None:
    refused = call("forget", model, "red", "--everywhere", stdin="n\n")
    assert refused.exit_code == 1
    assert "Erase red from all steps of" in refused.stderr
    assert known(model) == ["blue", "green", "red"]
    result = call("forget", model, "red", "--everywhere", stdin="y\n")
    assert f"Step 1: {model} erased 10 photos in " in result.stdout
    told = done("history", model)
    assert "learned blue, green" in told
    assert "red" not in told
    done("forget", model, "green")
    told = done("forget", model, "green", "--everywhere", "--yes", "--json")
    assert json.loads(told)["edit"]["action"] == "erased"
    assert "forgot (erased)" in done("history", model)
    assert known(model) == ["blue"]


@pytest.mark.parametrize("name", ["forget", "rename", "merge"])
def test_help_has_an_example(name: str) -> None:
    assert f"densekd {name} animals.model" in done(name, "--help")
