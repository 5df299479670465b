import json
from pathlib import Path

import pytest

from densekd.runs.record import StepRecord
from densekd.runs.result import Result

from support.run_folders import write_run


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
