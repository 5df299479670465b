import json
import math
from pathlib import Path

import pytest

from densekd.runs.record import StepRecord
from densekd.runs.result import Result

from support.run_folders import rewrite, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path, "method.name=gkd", "scenario.steps=5")


def test_it_shows_what_the_file_has(folder: Path) -> None:
    raw, result = json.loads((folder / "result.json").read_bytes()), Result.open(folder)
    del raw["sha256"]
    assert dict(result) == result.record == raw
    assert result.folder == folder
    assert result.settings == raw["config"]
    assert result.average_incremental_accuracy == raw["average_incremental_accuracy"]
    assert result.forgetting == raw["forgetting"]
    assert result.accuracy == raw["steps"][-1]["accuracy"]
    assert result.steps == tuple(map(StepRecord.from_json, raw["steps"]))
    assert result.curve == [(step["classes_seen"], step["accuracy"]) for step in raw["steps"]]


def test_it_can_not_be_changed_from_outside(folder: Path) -> None:
    result = Result.open(folder)
    result.record["steps"].clear()
    result.settings["seed"] = 7
    assert len(result.steps) == 6
    assert result.settings["seed"] == 1993
    with pytest.raises(AttributeError):
        result.accuracy = 1.0  # type: ignore[misc]


def test_it_says_what_it_is(folder: Path) -> None:
    result = Result.open(folder)
    share = f"{result.average_incremental_accuracy:.1%}"
    assert repr(result).startswith("<Result: gkd on digits, 6 tasks: average incremental accuracy ")
    assert share in repr(result)
    assert str(folder) in repr(result)


def test_a_notebook_shows_a_row_for_each_task(folder: Path) -> None:
    shown = Result.open(folder)._repr_html_()
    assert shown.count("<tr>") == 1 + 6
    assert "gkd on digits" in shown


def test_an_unfinished_run_has_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path, tasks=1)
    with pytest.raises(ValueError, match=r"no result\.json"):
        Result.open(folder)


def test_a_file_has_none(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"no result\.json"):
        Result.open(folder / "result.json")


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "result.json").rename(tmp_path / "secret.json")
    (folder / "result.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(ValueError, match="link out of"):
        Result.open(folder)


def test_the_result_of_a_stranger(folder: Path) -> None:
    raw = Result.open(folder).record
    raw["config"]["method"]["name"] = "\x1b[2Jgkd"
    rewrite(folder / "result.json", {**raw, "average_incremental_accuracy": None})
    result = Result.open(folder)
    assert math.isnan(result.average_incremental_accuracy)
    assert "\x1b" not in repr(result)
    compression = {"kind": "compression", "teacher": "a", "student": "b", "method": "alone"}
    rewrite(folder / "result.json", {**compression, "epochs": [], "accuracy": None})
    result = Result.open(folder)
    assert "compression" in repr(result)
    assert math.isnan(result.average_incremental_accuracy)
    assert result.forgetting is None
