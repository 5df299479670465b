"""The losses of each epoch and the numbers of each task in files."""

import csv
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from densekd.files import read_sealed_line
from densekd.metrics import step_metrics
from densekd.runs.epochs import (
    EPOCHS_FILE,
    STEPS_FILE,
    EpochLog,
    StepTable,
    copy_epochs,
    read_epochs,
)
from densekd.runs.record import StepRecord
from densekd.training.callbacks import TrainingProgress

from support.schedules import TWO_PHASES


def report(
    task: int, phase: str, epoch: int, batch: int = 7, loss: float = 0.5
) -> TrainingProgress:
    return TrainingProgress(task, phase, epoch, 9, batch, 7, 0.1, 123.0, {"new": loss, "kd": 1.0})


def test_each_epoch_is_a_line_at_its_end(tmp_path: Path) -> None:
    log = EpochLog(TWO_PHASES, tmp_path / "run", tmp_path / "base")
    log.report(report(0, "train", 0, batch=3))
    assert not (tmp_path / "run").exists()
    log.report(report(0, "train", 0))
    log.report(report(0, "train", 3))
    log.report(report(1, "train", 0))
    log.report(report(1, "balance", 1))
    log.report(report(2, "train", 2))
    log.report(report(3, "balance", 0))
    lines = (tmp_path / "run" / EPOCHS_FILE).read_text().splitlines()
    assert read_sealed_line(lines[3].encode()) == {
        "task": 1,
        "phase": "balance",
        "epoch": 2,
        "step": 9,
        "lr": 0.1,
        "images_per_second": 123.0,
        "losses": {"new": 0.5, "kd": 1.0},
    }
    epochs = read_epochs(tmp_path / "run")
    assert [entry["step"] for entry in epochs] == [1, 4, 5, 9, 12, 18]
    assert epochs == read_epochs(tmp_path / "base")


def test_epochs_are_copied_if_there_are_any(tmp_path: Path) -> None:
    base, run = tmp_path / "base", tmp_path / "run"
    EpochLog(TWO_PHASES, base).report(report(0, "train", 0))
    EpochLog(TWO_PHASES, run).report(report(0, "train", 1))
    copy_epochs(base, run)
    assert [entry["epoch"] for entry in read_epochs(run)] == [1]
    copy_epochs(tmp_path / "none", run)
    (base / EPOCHS_FILE).unlink()
    os.mkfifo(base / EPOCHS_FILE)  # nobody writes to it
    copy_epochs(base, run)
    assert [entry["epoch"] for entry in read_epochs(run)] == [1]


def test_a_torn_line_is_lost_and_a_repeated_epoch_counts_once(tmp_path: Path) -> None:
    file = tmp_path / EPOCHS_FILE
    log = EpochLog(TWO_PHASES, tmp_path)
    for epoch in range(3):
        log.report(report(0, "train", epoch, loss=1.0))
    file.write_bytes(file.read_bytes()[:-9])
    assert [entry["epoch"] for entry in read_epochs(tmp_path)] == [1, 2]
    resumed = EpochLog(TWO_PHASES, tmp_path)
    for epoch in range(1, 4):
        resumed.report(report(0, "train", epoch, loss=2.0))
    found = read_epochs(tmp_path)
    assert [entry["epoch"] for entry in found] == [1, 2, 3, 4]
    assert [entry["losses"]["new"] for entry in found] == [1.0, 2.0, 2.0, 2.0]


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    EpochLog(None, tmp_path).report(report(1, "train", 0, loss=float("nan")))
    (entry,) = read_epochs(tmp_path)
    assert entry["losses"] == {"new": None, "kd": 1.0}
    assert entry["step"] == 1


def test_epochs_of_earlier_compressions_are_read_too(tmp_path: Path) -> None:
    assert read_epochs(tmp_path) == []
    earlier = {"epoch": 1, "loss": 3.0, "losses": {"labels": 3.0}}
    (tmp_path / "epochs.json").write_text(json.dumps({"0": earlier}))
    EpochLog(None, tmp_path).report(report(1, "train", 1))
    assert [entry["epoch"] for entry in read_epochs(tmp_path)] == [1, 2]
    assert read_epochs(tmp_path)[0] == earlier


def test_a_changed_line_is_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, log = tmp_path / EPOCHS_FILE, EpochLog(TWO_PHASES, tmp_path)
    for epoch in range(3):
        log.report(report(0, "train", epoch, loss=1.0))
    file.write_bytes(file.read_bytes().replace(b'"epoch": 2', b'"epoch": 7'))
    assert [entry["epoch"] for entry in read_epochs(tmp_path)] == [1, 3]
    assert "line 2" in caplog.text
    assert str(file) in caplog.text


@pytest.mark.parametrize(
    "text", ["[]", "1", '{"step": []}', '{"step": 1, "losses": 3}', "[" * 9999]
)
def test_lines_of_other_kinds_are_left_out(text: str, tmp_path: Path) -> None:
    (tmp_path / EPOCHS_FILE).write_text(text + "\n")
    (tmp_path / "epochs.json").write_text(text)
    assert read_epochs(tmp_path) == []


def test_half_a_line_is_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "run" / EPOCHS_FILE
    log = EpochLog(TWO_PHASES, file.parent)
    log.report(report(0, "train", 0))
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"task": 0')
    log.report(report(0, "train", 1))
    assert file.read_bytes().startswith(whole)
    assert file.read_bytes().count(b"\n") == 2
    assert len(read_epochs(file.parent)) == 2
    file.rename(tmp_path / "other")
    file.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        log.report(report(0, "train", 2))


def test_the_lines_of_repeated_epochs_are_replaced(tmp_path: Path) -> None:
    log = EpochLog(TWO_PHASES, tmp_path)
    for epoch in range(4):
        log.report(report(0, "train", epoch, loss=1.0))
    resumed = EpochLog(TWO_PHASES, tmp_path)
    resumed.report(report(0, "train", 2, loss=2.0))
    lines = (tmp_path / EPOCHS_FILE).read_text().splitlines()
    assert [json.loads(line)["losses"]["new"] for line in lines] == [1.0, 1.0, 2.0]


def step(number: int, **extra: Any) -> StepRecord:
    confusion = np.eye(2 + number, dtype=np.int64) * 3
    metrics = asdict(step_metrics(confusion, [2, *[1] * number]))
    facts: dict[str, Any] = {"head_accuracy": 1.0, "nme_accuracy": None, "seconds": 1.5}
    facts |= {"images_per_second": 9.0, "notes": {}, "classes": ("a",)}
    return StepRecord(number=number, **{**metrics, **facts, **extra})


def test_steps_are_a_table_of_numbers(tmp_path: Path) -> None:
    table = StepTable(tmp_path)
    table.evaluated(step(0))
    table.evaluated(step(1, notes={"kd.lambda": 8.0}, metrics={"ece": 0.25}))
    with (tmp_path / STEPS_FILE).open() as file:
        first, second = csv.DictReader(file)
    assert list(first)[:3] == ["task", "classes_seen", "accuracy"]
    assert (second["task"], second["classes_seen"]) == ("2", "3")
    assert (second["notes.kd.lambda"], second["metrics.ece"]) == ("8.0", "0.25")
    assert first["old_accuracy"] == first["notes.kd.lambda"] == first["nme_accuracy"] == ""
    assert "classes" not in first
    assert "number" not in first


def test_the_table_of_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    StepTable(tmp_path).evaluated(step(0))
    resumed = StepTable(tmp_path)
    resumed.resumed([step(0)])
    resumed.evaluated(step(1))
    with (tmp_path / STEPS_FILE).open() as file:
        assert [row["task"] for row in csv.DictReader(file)] == ["1", "2"]


def test_the_columns_of_validation_images_are_named(tmp_path: Path) -> None:
    held = step_metrics(np.eye(2, dtype=np.int64), [2])
    StepTable(tmp_path).evaluated(step(0, validation=held))
    assert "validation.accuracy" in (tmp_path / STEPS_FILE).read_text()
