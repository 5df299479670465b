import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from densekd.runs.epochs import TensorBoardWriter
from densekd.runs.record import StepRecord
from densekd.training.callbacks import TrainingProgress

from support.schedules import TWO_PHASES


def report(
    task: int, phase: str, epoch: int, batch: int = 7, loss: float = 0.5
) -> TrainingProgress:
    epochs = {"train": 3 if task else 4, "balance": 2}[phase]
    return TrainingProgress(
        task, phase, epoch, epochs, batch, 7, 0.1, 123.0, {"new": loss, "kd": 2 * loss}
    )


def record(number: int, accuracy: float = 0.75, nme: float | None = None) -> StepRecord:
    return StepRecord(
        number=number,
        classes=("ant", "bee"),
        classes_seen=2 * (number + 1),
        accuracy=accuracy,
        base_accuracy=0.5,
        old_accuracy=0.25 if number else float("nan"),
        new_accuracy=1.0,
        task_accuracies=(),
        head_accuracy=0.5,
        nme_accuracy=nme,
        seconds=1.0,
        images_per_second=1.0,
        notes={"kd.lambda": 8.0} if number else {},
    )


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would show: step and value, by tag."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(point.step, point.value) for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_epochs_are_counted_over_tasks_and_phases(tmp_path: Path) -> None:
    board = TensorBoardWriter(tmp_path, TWO_PHASES)
    board.report(report(0, "train", 0, batch=3))
    board.report(report(0, "train", 0))
    board.report(report(0, "train", 3))
    board.report(report(1, "train", 0))
    board.report(report(1, "balance", 1, loss=0.25))
    board.report(report(2, "train", 2))
    board.report(report(3, "balance", 0))
    board.close()
    shown = points(tmp_path / "epochs")
    assert set(shown) == {"loss/new", "loss/kd", "lr", "images_per_second"}
    assert [step for step, _ in shown["lr"]] == [1, 4, 5, 9, 12, 18]
    assert shown["loss/kd"][3] == (9, 0.5)
    assert shown["images_per_second"][0] == (1, 123.0)


def test_accuracies_are_shown_by_classes_seen(tmp_path: Path) -> None:
    board = TensorBoardWriter(tmp_path, TWO_PHASES)
    board.evaluated(record(0))
    board.evaluated(record(1, accuracy=0.5, nme=0.625))
    board.close()
    assert points(tmp_path / "tasks") == {
        "accuracy/all": [(2, 0.75), (4, 0.5)],
        "accuracy/base": [(2, 0.5), (4, 0.5)],
        "accuracy/old": [(4, 0.25)],
        "accuracy/new": [(2, 1.0), (4, 1.0)],
        "accuracy/nme": [(4, 0.625)],
        "notes/kd.lambda": [(4, 8.0)],
    }


def test_what_a_resumed_run_repeats_is_shown_once(tmp_path: Path) -> None:
    interrupted = TensorBoardWriter(tmp_path, TWO_PHASES)
    for epoch in range(4):
        interrupted.report(report(0, "train", epoch, loss=1.0))
    interrupted.evaluated(record(0, accuracy=0.25))
    interrupted.evaluated(record(1, accuracy=0.25))
    # It is not closed, as when the process is killed: all must be in the file already. Files are
    # read in the order of their names, which have the time in seconds.
    time.sleep(1.1)
    resumed = TensorBoardWriter(tmp_path, TWO_PHASES)
    resumed.report(report(0, "train", 2, loss=0.5))
    resumed.report(report(0, "train", 3, loss=0.5))
    resumed.evaluated(record(1, accuracy=0.5))
    resumed.close()
    losses, accuracies = points(tmp_path / "epochs"), points(tmp_path / "tasks")
    interrupted.close()
    assert losses["loss/new"] == [(1, 1.0), (2, 1.0), (3, 0.5), (4, 0.5)]
    assert accuracies["accuracy/all"] == [(2, 0.25), (4, 0.5)]


def test_nothing_is_written_before_there_is_something(tmp_path: Path) -> None:
    board = TensorBoardWriter(tmp_path / "events", TWO_PHASES)
    board.report(report(0, "train", 0, batch=1))
    board.close()
    assert not (tmp_path / "events").exists()
