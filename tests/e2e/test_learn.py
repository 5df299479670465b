"""The commands that a practitioner uses, from the first folder of images on."""

import csv
import io
import json
import os
import pty
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from densekd.cli import app
from densekd.cli.model import history_titles
from densekd.data.dataset import Dataset, PixelImages
from densekd.data.scenario import class_order
from densekd.model.trained.model import TrainedModel

from support.forked_commands import ForkedCommand
from support.photos import fill, picture

TINY = [
    *("--image-size", "8", "--network", "resnet8", "--epochs", "2"),
    *("-o", "memory.per_class=4"),
]


def call(*arguments: str | Path, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def done(*arguments: str | Path, stdin: str | None = None) -> str:
    """What a call that succeeds prints."""
    result = call(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*arguments: str | Path) -> str:
    """The sentence of a call that can't be done."""
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def words(text: str) -> list[list[str]]:
    """The lines of a table, by words."""
    return [line.split() for line in text.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A model that learned twice, whose images are gone, and what was printed."""
    place = tmp_path_factory.mktemp("taught")
    model, images = place / "my model", place / "images"
    told = []
    for counts in ({"red": 20, "green": 20}, {"blue": 20, "dark blue é": 1}):
        told.append(done("learn", model, fill(images, counts), *TINY))
        shutil.rmtree(images)
    return model, told


@pytest.fixture
def model(taught: tuple[Path, list[str]], tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return shutil.copytree(taught[0], tmp_path / "model")


def test_learn_prints_accuracy_and_forgetting(taught: tuple[Path, list[str]]) -> None:
    model, (first, second) = taught
    assert first.startswith(f"Step 0: {model} learned green, red from 34 images in ")
    assert ["all", "classes", "6", "-"] in [row[:4] for row in words(first)]
    assert second.startswith(f"Step 1: {model} learned blue, dark blue é from 18 images in ")
    update = json.loads((model / "steps/001/state.json").read_text())["facts"]["update"]
    table = {row[0]: row[2:] for row in words(second) if row[1:2] == ["classes"]}
    for part, tested in (("new", 3), ("old", 6), ("all", 9)):
        before, after = (100 * update[when][part] for when in ("before", "after"))
        assert table[part] == [str(tested), f"{before:.1f}", f"{after:.1f}"]
    assert second.endswith("Without test images: dark blue é.\n")


def test_an_unbalanced_folder_with_all_kinds_of_files(tmp_path: Path) -> None:
    """Hundreds of images of one class, few of others, one of another, all kinds of files."""
    model, first, second = tmp_path / "model", tmp_path / "first", tmp_path / "second"
    fill(first, {"red": 700})
    for name, ending in (("7", "JPG"), ("yellow", "GIF")):
        (first / name).mkdir()
        for number in range(40):
            picture(name, number).save(first / name / f"{number}.{ending}")
    (first / "7" / "IMG_1.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    told = call("learn", model, first, *TINY[:4], "--epochs", "6")
    assert told.exit_code == 0
    assert "Left out" in told.stderr
    assert "IMG_1.HEIC': HEIC" in told.stderr
    assert "learned 7, red, yellow from 668 images" in told.stdout
    shutil.rmtree(first)
    done("learn", model, fill(second, {"dark blue é": 1, "green": 30}), "--epochs", "10")
    shutil.rmtree(second)
    unseen = fill(tmp_path / "unseen", {"red": 9, "7": 9, "yellow": 9, "green": 9}, first=5000)
    shown = list(csv.DictReader(io.StringIO(done("predict", model, unseen, "--csv"))))
    right = [Path(row["image"]).parent.name == row["name"] for row in shown]
    assert len(right) == 36
    assert sum(right) >= 30
    assert TrainedModel.open(model).classes == ("7", "red", "yellow", "dark blue é", "green")


@pytest.mark.parametrize(
    ("width", "missing"),
    [
        (104, []),
        (103, ["seconds"]),
        (80, ["seconds", "from", "classes"]),
        (60, ["seconds", "from", "classes", "when"]),
    ],
)
def test_a_history_fits_the_terminal(width: int, missing: list[str]) -> None:
    every = history_titles(200)
    assert len(every) == 10
    assert history_titles(width) == [title for title in every if title not in missing]


def test_history_and_undo(model: Path, tmp_path: Path) -> None:
    rows = words(done("history", model))
    assert [row[:3] for row in rows[2:4]] == [["0", "-", rows[2][2]], ["→", "1", "0"]]
    told = done("undo", model)
    assert told.startswith(f"{model} is now at step 0 and knows 2 classes: green, red.")
    assert "nothing to go back to" in refused("undo", model)
    assert "has no step 5" in refused("undo", model, "--to", "5")
    done("learn", model, fill(tmp_path / "images", {"7": 10}), *TINY)
    entries = json.loads(done("history", model, "--json"))
    assert [(e["step"], e["parent"], e["current"]) for e in entries] == [
        (0, None, False),
        (1, 0, False),
        (2, 0, True),
    ]


def test_info(taught: tuple[Path, list[str]]) -> None:
    facts = json.loads(done("info", taught[0], "--json"))
    assert [each["name"] for each in facts["classes"]] == ["green", "red", "blue", "dark blue é"]
    assert [each["exemplars"] for each in facts["classes"]] == [4, 4, 4, 1]
    assert [each["step"] for each in facts["classes"]] == [0, 0, 1, 1]
    assert (facts["network"], facts["image_size"], facts["tested"]) == ("resnet8", 8, 9)
    assert 0 <= facts["calibration_error"] <= 1
    shown = done("info", taught[0])
    assert "fdkd with resnet8" in shown or "rdkd-adaptive with resnet8" in shown
    assert words(shown)[-1][:3] == ["dark", "blue", "é"]
    earlier = json.loads(done("info", taught[0], "--step", "0", "--json"))
    assert [each["name"] for each in earlier["classes"]] == ["green", "red"]


def test_predict_a_file_a_folder_and_stdin(taught: tuple[Path, list[str]], tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"red": 2, "blue": 1})
    files = sorted(images.rglob("*.png"))
    opened = TrainedModel.open(taught[0])
    expected = opened.predict(files, top=2)
    (found,) = json.loads(done("predict", taught[0], files[0], "--top", "2", "--json"))
    assert found["image"] == str(files[0])
    assert [guess["name"] for guess in found["guesses"]] == [g.name for g in expected[0]]
    result = call("predict", taught[0], images, "--csv")
    rows = list(csv.reader(io.StringIO(result.stdout)))
    assert rows[0] == ["image", "rank", "name", "probability", "known"]
    assert [row[:3] for row in rows[1:]] == [
        [str(file), "1", guess[0].name] for file, guess in zip(files, expected, strict=True)
    ]
    assert [float(row[3]) for row in rows[1:]] == pytest.approx(
        [guess[0].probability for guess in expected], abs=1e-5
    )
    assert result.stderr.startswith("3 images, ")
    listed = "".join(f"{file}\n" for file in files[::-1])
    piped = json.loads(done("predict", taught[0], "-", "--json", stdin=listed))
    assert [each["image"] for each in piped] == [str(file) for file in files[::-1]]
    table = words(done("predict", taught[0], files[0], "--top", "2"))
    assert table[2][0] == str(files[0])
    assert table[2][1:-1] == expected[0][0].name.split()
    assert table[2][-1] == f"{100 * expected[0][0].probability:.1f}"


def test_unreadable_files_are_named(taught: tuple[Path, list[str]], tmp_path: Path) -> None:
    picture("red", 1).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("no image")
    result = call("predict", taught[0], tmp_path, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [each["error"] is None for each in found] == [True, False]
    assert f"{tmp_path / 'b.png'} can't be read: not an image" in result.stderr
    result = call("predict", taught[0], tmp_path / "none.png")
    assert result.exit_code == 1
    assert "none.png can't be read: No such file or directory." in result.stderr


def test_errors_are_one_sentence(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"red": 6})
    assert "'red' is known already" in refused("learn", model, images)
    assert "either epochs or a budget" in refused(
        "learn", model, images, "--epochs", "1", "--budget", "1"
    )
    assert "is not a setting; did you mean" in refused(
        "learn", model, fill(images, {"7": 6}), "-o", "memory.perclass=3"
    )
    assert "There is no model in" in refused("predict", tmp_path, images)
    assert "is no folder of one model, run or sweep" in refused("check", tmp_path)
    (tmp_path / "empty").mkdir()
    assert "There is no image in" in refused("predict", model, tmp_path / "empty")
    assert "either --json or --csv" in refused("predict", model, images, "--json", "--csv")
    result = call("learn", model, images, "--known", "perhaps")
    assert result.exit_code == 2
    assert "'perhaps'" in result.stderr


def test_a_dry_run_changes_nothing(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"7": 20, "red": 8})
    told = done("learn", model, images, *TINY, "--known", "replay", "--dry-run")
    assert told.startswith(
        "Step 2: learn 1 new class (7) from 17 images and 7 more images of red, at 8"
    )
    assert words(told)[3:5] == [["7", "new", "17", "3"], ["red", "known", "7", "1"]]
    assert told.splitlines()[-1].startswith("This would take about ")
    assert len(json.loads(done("history", model, "--json"))) == 2
    plan = json.loads(
        done("learn", model, images, *TINY, "--known", "replay", "--dry-run", "--json")
    )
    assert plan["phases"] == [["train", 2]]


def test_learn_prints_json(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"7": 20})
    result = call("learn", model, images, *TINY, "--json")
    update = json.loads(result.stdout)
    assert (update["learned"], update["step"]) == (["7"], 2)
    assert [each["name"] for each in update["classes"]][-1] == "7"
    assert "Step 2: learn 1 new class (7) from 17 images" in result.stderr
    again = call("learn", model, images, *TINY, "--json")
    assert json.loads(again.stdout) == update
    assert "were already learned in step 2" in again.stderr


def test_fine_tuning_after_learning(tmp_path: Path) -> None:
    model, images = tmp_path / "model", fill(tmp_path / "images", {"red": 5, "green": 5})
    told = done("learn", model, images, "--finetune")
    assert "learned green, red from 8 images" in told
    # Red and green are told apart without it.
    assert f"100.0 % without it. {model} stays as it was." in told.splitlines()[-1]
    assert len(json.loads(done("history", model, "--json"))) == 1
    again = call("learn", model, images, "--finetune", "--json")
    assert json.loads(again.stdout)["kept"] is False
    assert "leave out --finetune" in refused("learn", model, images, "--finetune", "--dry-run")
    assert "Give a folder of images" in refused("learn", model)


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_continue(model: Path, tmp_path: Path) -> None:
    images = fill(tmp_path / "images", {"7": 100})
    arguments = ["learn", str(model), str(images), *TINY, "--epochs", "2000"]
    primary, secondary = pty.openpty()
    terminal = Path(os.ttyname(secondary))
    with ForkedCommand(arguments, tmp_path, terminal, terminal) as command:
        command.wait_for(lambda: list(model.glob("pending/*/epochs/*.json")))
        os.close(secondary)  # which the command has, too
        command.send_signal(signal.SIGINT)
        shown = _until_closed(primary)
        assert command.wait() == 130
    os.close(primary)
    assert "Learning" in shown
    assert "Stopped and saved. To resume, run:" in shown
    assert len(json.loads(done("history", model, "--json"))) == 2


def _until_closed(terminal: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # how Linux says that the other side was closed
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode(errors="replace")


def write_classes(data: Dataset, names: Sequence[str], folder: Path) -> Path:
    """Some classes of CIFAR-100 as PNG files, 50 images to learn from and 30 to test on."""
    for part, split, count in (("train", data.train, 50), ("val", data.test, 30)):
        assert isinstance(split.images, PixelImages)
        for name in names:
            place = folder / part / name
            place.mkdir(parents=True)
            chosen = (split.labels == data.classes.index(name)).nonzero().flatten()[:count]
            for number, index in enumerate(chosen.tolist()):
                pixels = split.images.pixels[index].permute(1, 2, 0).numpy()
                Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


def learned(model: Path, data: Dataset, place: Path, *options: str) -> list[dict[str, Any]]:
    """Teach ten classes of CIFAR-100, then twice five; the images are deleted after each update."""
    updates = []
    # The usual order of classes; within a task they are sorted.
    order = [data.classes[label] for label in class_order(data, 1993)]
    known: tuple[str, ...] = ()
    for first, last in ((0, 10), (10, 15), (15, 20)):
        names = sorted(order[first:last])
        known += tuple(names)
        images = write_classes(data, names, place / "images")
        epochs = "8" if first else "12"
        told = done("learn", model, images, "--json", "--epochs", epochs, *options)
        updates.append(json.loads(told))
        opened = TrainedModel.open(model)
        assert opened.classes == known
        files = sorted((images / "val").rglob("*.png"))[::7]
        found = json.loads(done("predict", model, images / "val", "--json"))
        shown = {each["image"]: each["guesses"][0]["name"] for each in found}
        assert len(shown) == 30 * len(names)
        assert [shown[str(file)] for file in files] == opened.learner.predict(
            PixelImages(opened.read(files))
        )
        shutil.rmtree(images)
    return updates


@pytest.mark.slow
def test_cifar_classes_are_forgotten_less_than_by_finetuning(
    cifar100: Dataset, tmp_path: Path
) -> None:
    options = ["--network", "resnet8", "--image-size", "20", "-o", "memory.per_class=4"]
    ours = learned(tmp_path / "ours", cifar100, tmp_path, *options)
    other = learned(tmp_path / "other", cifar100, tmp_path, *options, "--method", "finetune")
    assert ours[0]["after"] == other[0]["after"]
    kept, lost = ([update["after"]["old"] for update in each[1:]] for each in (ours, other))
    # It reaches 7.3 and 5.8 points more.
    assert all(mine > theirs for mine, theirs in zip(kept, lost, strict=True))
    assert sum(kept) / 2 > sum(lost) / 2 + 0.03
    assert all(update["after"]["new"] > 0.15 for update in ours)
