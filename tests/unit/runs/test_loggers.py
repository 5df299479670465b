from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from densekd.config.schema import resolve
from densekd.parts import OwnPartError
from densekd.runs.epochs import EpochLog
from densekd.runs.loggers import (
    Axis,
    LoggedRun,
    Logger,
    RunLoggers,
    load_loggers,
    task_numbers,
)
from densekd.runs.record import StepRecord
from densekd.runs.run import run_config
from densekd.training.callbacks import TrainingProgress

from support.schedules import TWO_PHASES


class Log(Logger):
    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self.ids: list[str | None] = []
        self.ends: list[bool] = []

    def begin(self, run: LoggedRun) -> str:
        self.ids.append(run.id)
        return "run-1"

    def log(self, axis: Axis, step: int, numbers: Mapping[str, float]) -> None:
        assert numbers
        self.steps.append((axis, step))

    def end(self, result: Mapping[str, Any] | None) -> None:
        self.ends.append(result is not None)


def report(epoch: int, batch: int = 7) -> TrainingProgress:
    return TrainingProgress(0, "train", epoch, 4, batch, 7, 0.1, 9.0, {"ce": 0.5, "kd": 1.0})


def record(number: int) -> StepRecord:
    return StepRecord(
        number=number,
        classes=("ant", "bee"),
        classes_seen=2 * (number + 1),
        accuracy=0.75,
        base_accuracy=0.5,
        old_accuracy=0.25 if number else float("nan"),
        new_accuracy=1.0,
        task_accuracies=(),
        head_accuracy=0.5,
        nme_accuracy=None,
        seconds=1.0,
        images_per_second=1.0,
        notes={"kd.lambda": 8.0} if number else {},
        metrics={"ece": 0.125},
    )


def begun(folder: Path, **loggers: Logger) -> RunLoggers:
    made = RunLoggers(folder, loggers, TWO_PHASES)
    made.begin({"seed": 7})
    return made


def train(loggers: RunLoggers, *epochs: int) -> None:
    """Let epochs pass, as a run does: loggers first, then the file."""
    for epoch in epochs:
        loggers.report(report(epoch, batch=3))
        loggers.report(report(epoch))
        EpochLog(TWO_PHASES, loggers.folder).report(report(epoch))


def test_each_step_is_logged_once_over_several_calls(tmp_path: Path) -> None:
    log = Log()
    train(begun(tmp_path, log=log), 0, 1, 2)
    resumed = begun(tmp_path, log=log)  # from the checkpoint after the first epoch
    train(resumed, 1, 2, 3)
    resumed.evaluated(record(0))
    resumed.end(None)
    last = begun(tmp_path, log=log)
    last.resumed([record(0)])
    last.evaluated(record(1))
    last.end({})
    epochs = [("epochs", step) for step in (1, 2, 3, 4)]
    assert log.steps == [*epochs, ("tasks", 2), ("tasks", 4)]
    assert log.ids == [None, "run-1", "run-1"]
    assert log.ends == [False, True]


def test_a_logger_that_comes_later_gets_what_was_before(tmp_path: Path) -> None:
    first, second = Log(), Log()
    loggers = begun(tmp_path, first=first)
    train(loggers, 0, 1)
    loggers.evaluated(record(0))
    both = begun(tmp_path, first=first, second=second)
    both.resumed([record(0)])
    assert first.steps == second.steps or sorted(first.steps) == sorted(second.steps)
    begun(tmp_path, second=second)
    back = begun(tmp_path, first=first)  # was away for a call, so begins anew
    assert first.ids == [None, "run-1", None]
    back.resumed([record(0)])
    assert first.steps.count(("tasks", 2)) == 2


def test_epochs_of_a_base_of_another_run_are_logged(tmp_path: Path) -> None:
    log = Log()
    loggers = begun(tmp_path / "run", log=log)
    for epoch in range(4):
        EpochLog(TWO_PHASES, tmp_path / "base").report(report(epoch))
    loggers.catch_up(tmp_path / "base")
    assert log.steps == [("epochs", step) for step in (1, 2, 3, 4)]


def test_a_run_that_is_killed_before_it_logged_a_base_of_another_run_logs_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    monkeypatch.setattr("densekd.runs.run.make_loggers", lambda names: {"log": log})
    tree = {"network": "resnet8", "data": {"per_class": 4}, "scenario": {"first": 1}, "epochs": 2}
    run_config(resolve({**tree, "method": {"name": "gkd"}}), tmp_path)
    assert log.steps == [("epochs", 1), ("epochs", 2), ("tasks", 5)]
    catch_up, log.steps = RunLoggers.catch_up, []

    def killed(loggers: RunLoggers, folder: Path) -> None:
        if "bases" in folder.parts:
            raise KeyboardInterrupt
        catch_up(loggers, folder)

    other = resolve({**tree, "method": {"name": "rdkd"}})
    with monkeypatch.context() as patch:
        patch.setattr(RunLoggers, "catch_up", killed)
        with pytest.raises(KeyboardInterrupt):
            run_config(other, tmp_path)
    assert log.steps == []
    run_config(other, tmp_path)
    assert log.steps == [("epochs", 1), ("epochs", 2), ("tasks", 5)]


def test_numbers_after_a_task_have_names_and_unknown_ones_are_left_out() -> None:
    assert task_numbers(record(0)) == {
        "accuracy/all": 0.75,
        "accuracy/base": 0.5,
        "accuracy/new": 1.0,
        "metrics/ece": 0.125,
    }
    later = task_numbers(record(1))
    assert (later["accuracy/old"], later["notes/kd.lambda"]) == (0.25, 8.0)


def test_a_damaged_file_of_ids_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "loggers.json").write_text("{")
    log = Log()
    begun(tmp_path, log=log)
    assert log.ids == [None]


def test_a_logger_that_raises_is_named(tmp_path: Path) -> None:
    class Full(Logger):
        def log(self, axis: Axis, step: int, numbers: Mapping[str, float]) -> None:
            raise OSError("no space left")

    loggers = begun(tmp_path, full=Full())
    sentence = r"The logger full can't be used: OSError in line \d+ of test_loggers.py: no space"
    with pytest.raises(OwnPartError, match=sentence):
        loggers.evaluated(record(0))


def test_without_loggers_there_is_no_file(tmp_path: Path) -> None:
    loggers = begun(tmp_path)
    train(loggers, 0)
    loggers.evaluated(record(0))
    loggers.end({})
    assert not (tmp_path / "loggers.json").exists()


def test_a_run_that_goes_on_without_loggers_forgets_them(tmp_path: Path) -> None:
    begun(tmp_path, log=Log())
    assert load_loggers(tmp_path) == {"log": {"id": "run-1", "tasks": 0}}
    begun(tmp_path)
    assert not (tmp_path / "loggers.json").exists()


def test_a_logger_that_fails_to_catch_up_begins_anew(tmp_path: Path) -> None:
    class Unreachable(Log):
        def log(self, axis: Axis, step: int, numbers: Mapping[str, float]) -> None:
            if step > 1:
                raise OSError("no network")

    train(begun(tmp_path), 0, 1, 2)
    with pytest.raises(OwnPartError, match="no network"):
        begun(tmp_path, log=Unreachable())
    log = Log()
    begun(tmp_path, log=log)
    assert log.ids == [None]
    assert log.steps == [("epochs", step) for step in (1, 2, 3)]


def test_all_loggers_end_even_if_one_fails(tmp_path: Path) -> None:
    class Failing(Logger):
        def end(self, result: Mapping[str, Any] | None) -> None:
            raise OSError("no network")

    log = Log()
    loggers = begun(tmp_path, failing=Failing(), log=log)
    with pytest.raises(OwnPartError, match="The logger failing"):
        loggers.end({})
    assert log.ends == [True]
