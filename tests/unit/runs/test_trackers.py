import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from densekd.parts import OwnPartError, load_files, refer
from densekd.runs import trackers
from densekd.runs.loggers import LoggedRun, Logger
from densekd.runs.trackers import MlflowLogger, TensorBoardLogger, WandbLogger, make_loggers

RESULT: dict[str, Any] = {"average_incremental_accuracy": 0.5, "forgetting": None, "steps": []}


def begun(logger: Logger, folder: Path, known: str | None = None) -> str | None:
    folder.mkdir(exist_ok=True)
    return logger.begin(LoggedRun(folder, {"seed": 7, "data": {"source": "digits"}}, known))


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would show: step and value, by tag."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(point.step, point.value) for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_has_a_folder_for_epochs_and_one_for_tasks(tmp_path: Path) -> None:
    board = TensorBoardLogger()
    begun(board, tmp_path)
    board.log("epochs", 1, {"loss/ce": 0.5, "lr": 0.125})
    board.log("epochs", 2, {"loss/ce": 0.25, "lr": 0.125})
    board.log("tasks", 5, {"accuracy/all": 0.75})
    board.end(RESULT)
    assert points(tmp_path / "tensorboard" / "epochs") == {
        "loss/ce": [(1, 0.5), (2, 0.25)],
        "lr": [(1, 0.125), (2, 0.125)],
    }
    assert points(tmp_path / "tensorboard" / "tasks") == {"accuracy/all": [(5, 0.75)]}


def test_tensorboard_shows_a_repeated_step_once(tmp_path: Path) -> None:
    interrupted, resumed = TensorBoardLogger(), TensorBoardLogger()
    begun(interrupted, tmp_path)
    for step in (1, 2, 3):
        interrupted.log("epochs", step, {"loss/ce": 1.0})
    # It is not ended, as when the process is killed: all must be in the file already. Files are
    # read in the order of their names, which have the time in seconds.
    time.sleep(1.1)
    begun(resumed, tmp_path)
    resumed.log("epochs", 2, {"loss/ce": 0.5})
    resumed.end(None)
    shown = points(tmp_path / "tensorboard" / "epochs")
    interrupted.end(None)
    assert shown == {"loss/ce": [(1, 1.0), (2, 0.5)]}


def test_tensorboard_writes_nothing_before_there_is_something(tmp_path: Path) -> None:
    board = TensorBoardLogger()
    begun(board, tmp_path)
    board.end(None)
    assert not (tmp_path / "tensorboard").exists()


def wandb_history(file: Path) -> list[dict[str, str]]:
    """The numbers in a file of W&B's, which is a log in LevelDB's format, as JSON by name."""
    proto: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    content, place, message = file.read_bytes(), 7, b""
    found = []
    while place < len(content):
        rest = 32768 - place % 32768
        if rest < 7:  # no room for the head of a record
            place += rest
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        message += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = proto.Record.FromString(message)
            message = b""
            if record.history.item:
                items = record.history.item
                found.append({"/".join(i.nested_key) or i.key: i.value_json for i in items})
    return found


@pytest.mark.slow
def test_wandb_writes_offline_and_goes_on_with_the_same_run(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    logger = WandbLogger(mode="offline")
    known = begun(logger, tmp_path / "run")
    logger.log("epochs", 1, {"loss/ce": 0.5})
    logger.end(None)
    assert begun(logger, tmp_path / "run", known) == known
    logger.log("epochs", 2, {"loss/ce": 0.25})
    logger.log("tasks", 5, {"accuracy/all": 0.75})
    logger.end(RESULT)
    wandb.teardown()  # ends their process, which writes the files
    files = sorted((tmp_path / "run" / "wandb").glob(f"offline-run-*-{known}/run-{known}.wandb"))
    logged = [entry for file in files for entry in wandb_history(file)]
    numbers = [{k: float(x) for k, x in e.items() if not k.startswith("_")} for e in logged]
    assert numbers == [
        {"epochs/step": 1, "epochs/loss/ce": 0.5},
        {"epochs/step": 2, "epochs/loss/ce": 0.25},
        {"tasks/step": 5, "tasks/accuracy/all": 0.75},
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, within MLflow
def test_mlflow_writes_to_sqlite_and_goes_on_with_the_same_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    logger = MlflowLogger()
    known = begun(logger, tmp_path / "run")
    logger.log("epochs", 1, {"loss/ce": 0.5, "lr": 0.1})
    logger.end(None)
    again = MlflowLogger()
    assert begun(again, tmp_path / "run", known) == known
    again.log("epochs", 2, {"loss/ce": 0.25})
    again.log("tasks", 5, {"accuracy/all": 0.75})
    again.end(RESULT)
    assert (tmp_path / "mlflow.db").is_file()
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (experiment,) = (e for e in client.search_experiments() if e.name == "densekd")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params == {"seed": "7", "data.source": "digits"}
    assert run.data.metrics["tasks/accuracy/all"] == 0.75
    assert run.data.metrics["average_incremental_accuracy"] == 0.5
    history = client.get_metric_history(run.info.run_id, "epochs/loss/ce")
    assert [(each.step, each.value) for each in history] == [(1, 0.5), (2, 0.25)]


def test_the_default_is_tensorboard_and_an_empty_list_is_none() -> None:
    assert [*make_loggers(None)] == ["tensorboard"]
    assert make_loggers([]) == {}
    assert [*make_loggers(["wandb", "mlflow"])] == ["wandb", "mlflow"]


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    assert make_loggers(None) == {}
    with pytest.raises(ValueError, match=r"wandb.*densekd\[wandb\]"):
        make_loggers(["wandb"])


class Own(Logger):
    def log(self, axis: str, step: int, numbers: Mapping[str, Any]) -> None:
        raise AssertionError


def test_loggers_of_ones_own_are_values_classes_and_names_in_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import densekd\nclass Log(densekd.Logger): pass\nlog = Log()\n")
    load_files([f"{file}:log"])
    made = make_loggers([f"{file}:log", f"{file}:Log", refer(Own)])
    assert [*made] == ["log", "Log", "own"]
    assert all(isinstance(each, Logger) for each in made.values())
    with pytest.raises(ValueError, match="'tensorboard'; give one another `name`"):
        make_loggers(["tensorboard", refer(TensorBoardLogger())])
    with pytest.raises(OwnPartError, match=r"The logger dict must be a densekd.Logger.*not dict"):
        make_loggers([refer({})])
