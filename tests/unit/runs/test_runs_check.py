import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from densekd.cli import app
from densekd.runs.check import check_run, repair_run
from densekd.runs.epochs import EPOCHS_FILE, EpochLog, read_epochs
from densekd.runs.predictions import Predictions, save_predictions
from densekd.runs.stored import load_result
from densekd.training.callbacks import TrainingProgress

from support.run_folders import rewrite, write_run, write_sweep

EXPERIMENT = """
title = "t"
about = "a"
[grid]
"method.name" = ["rdkd"]
"scenario.steps" = [5]
[table]
rows = "method.name"
columns = "scenario.steps"
"""


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A finished run with every kind of file but checkpoints."""
    folder = write_run(tmp_path)
    report = TrainingProgress(0, "train", 0, 9, 7, 7, 0.1, 123.0, {"new": 1.0})
    EpochLog(None, folder).report(report)
    EpochLog(None, folder).report(replace(report, epoch=1))
    flat = {"sigmas": [0.0, 0.1], "draws": 1, "images": 3, "losses": [[1.0], [2.0]]}
    rewrite(folder / "flatness.json", flat)
    rewrite(folder / "code.json", {"mine.py": "0" * 64})
    rewrite(folder / "loggers.json", {"tensorboard": {"id": None, "tasks": 10}})
    labels, scores = np.arange(2), np.eye(2, dtype=np.float32)
    save_predictions(folder, 1, Predictions(labels, labels, scores, np.array(["a", "b"])))
    return folder


def damaged(content: bytes) -> dict[str, bytes]:
    """A content, damaged in several ways."""
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return {"flipped": flipped, "cut": content[:middle], "empty": b"", "text": b"x" * 1000}


def check(folder: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", str(folder), *options])
    assert "Traceback" not in done.output
    return done.exit_code, done.output


def test_a_run_is_intact(finished: Path) -> None:
    assert check(finished) == (0, f"{finished}: 7 files intact; its result is intact.\n")


def test_a_run_without_a_result_is_unfinished_and_not_damaged(tmp_path: Path) -> None:
    for tasks in (0, 2):
        folder = write_run(tmp_path / str(tasks), tasks=tasks)
        found = check_run(folder)
        assert (found.problems, found.result) == ((), "missing")
        code, text = check(folder)
        assert code == 0
        assert "unfinished" in text
        assert "its result is intact" not in text


def test_each_damaged_file_is_named_and_set_aside(finished: Path, tmp_path: Path) -> None:
    files = [file for file in finished.rglob("*") if file.is_file()]
    assert len(files) == 7
    for file in files:
        for way, content in damaged(file.read_bytes()).items():
            if file.name == EPOCHS_FILE and way != "flipped":
                continue  # half a line, as a kill leaves it
            copy = tmp_path / f"{file.name}-{way}" / finished.name
            shutil.copytree(finished, copy)
            broken = copy / file.relative_to(finished)
            broken.write_bytes(content)
            code, text = check(copy)
            assert code == 1, (file.name, way)
            assert str(broken) in text
            assert ("result is damaged" in text) == (file.name == "result.json")
            code, text = check(copy, "--repair")
            assert code == 0, text
            (aside,) = (x for x in (copy / "set-aside").rglob("*") if x.is_file())
            assert aside.read_bytes() == content
            assert check_run(copy).problems == ()


def test_intact_lines_are_kept(finished: Path) -> None:
    file = finished / EPOCHS_FILE
    file.write_bytes(b"{}\n" + file.read_bytes())
    before = len(read_epochs(finished))
    found, place = repair_run(finished)
    assert place is not None
    assert "line 1" in found.problems[0]
    assert len(read_epochs(finished)) == before == 2


def test_damaged_checkpoints_of_an_unfinished_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path, tasks=2)
    (state,) = (folder / "learner").glob("*.json")
    state.write_bytes(damaged(state.read_bytes())["flipped"])
    found, place = repair_run(folder)
    assert (len(found.problems), found.result) == (1, "missing")
    assert place is not None
    assert not list((folder / "learner").iterdir())


def test_a_sweep_has_no_result_of_its_own(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, "s", EXPERIMENT, {write_run(tmp_path): {"seed": 1}})
    assert check(folder) == (0, f"{folder}: 2 files intact.\n")
    (folder / "runs.json").write_text("{}")
    assert check(folder)[0] == 1
    assert check(folder, "--repair")[0] == 0


def test_links_out_of_the_folder_are_not_followed(finished: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    shutil.move(finished / "result.json", secret)
    (finished / "result.json").symlink_to(secret)
    shutil.move(finished / "predictions", tmp_path / "predictions")
    (finished / "predictions").symlink_to(tmp_path / "predictions")
    code, text = check(finished)
    assert code == 1
    assert text.count("link out of") == 2
    assert check(finished, "--repair")[0] == 0
    assert secret.exists()
    assert not (finished / "result.json").exists()


def test_what_a_link_in_place_of_epochs_leads_to_stays_there(tmp_path: Path) -> None:
    folder, outside = write_run(tmp_path / "runs", tasks=1), tmp_path / "outside"
    (outside / "001").mkdir(parents=True)
    (outside / "letter.txt").write_text("dear all")
    (outside / "001" / "000001.json").write_text("{}")
    (folder / "epochs").symlink_to(outside)
    found, _ = repair_run(folder)
    assert found.unreadable == (folder / "epochs",)
    assert (outside / "letter.txt").exists()
    assert (outside / "001" / "000001.json").exists()
    assert check_run(folder).problems == ()


@pytest.mark.parametrize("way", ["a file", "a pipe", "a link"])
@pytest.mark.parametrize("name", ["learner", "epochs", "epochs/001", "predictions", "result.json"])
def test_what_is_in_the_place_of_a_folder_is_set_aside(tmp_path: Path, name: str, way: str) -> None:
    folder = write_run(tmp_path, tasks=1)
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(exist_ok=True)
    if way == "a file":
        place.write_bytes(b"text")
    elif way == "a pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(place.name)
    code, text = check(folder)
    assert code == 1
    assert str(place) in text
    assert check(folder, "--repair")[0] == 0
    assert not os.path.lexists(place)


def test_leftovers_of_killed_writes_are_removed(finished: Path) -> None:
    left = finished / ".result.json.0123abcd.tmp"
    left.touch()
    repair_run(finished)
    assert not left.exists()


def test_a_folder_of_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not the folder of a run"):
        check_run(tmp_path)
    assert os.listdir(tmp_path) == []


def test_the_result_of_an_edited_file_is_not_believed(finished: Path) -> None:
    file = finished / "result.json"
    before = load_result(finished)["average_incremental_accuracy"]
    file.write_text(file.read_text().replace(str(before), "0.999", 1))
    with pytest.raises(ValueError, match=r"result\.json is damaged"):
        load_result(finished)
