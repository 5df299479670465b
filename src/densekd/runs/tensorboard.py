"""Events for TensorBoard, if it is installed."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from densekd.methods.method import Method
from densekd.runs.epochs import epoch_step
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.training.callbacks import TrainingProgress

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def tensorboard_installed() -> bool:
    """Whether events can be written."""
    return find_spec("tensorboard") is not None


class TensorBoardWriter(RunObserver):
    """Writes losses by epoch to ``epochs`` and accuracies by classes seen to ``tasks``.

    A resumed run hides the events that it repeats.

    Args:
        folder: where the events go; made with the first event.
        method: says how many epochs each task has.
    """

    def __init__(self, folder: Path, method: Method) -> None:
        self.folder = folder
        self.method = method
        self._writers: dict[str, SummaryWriter] = {}

    def report(self, report: TrainingProgress) -> None:
        """Write losses, learning rate and speed at the end of an epoch."""
        if not report.ends_epoch:
            return
        values = {f"loss/{slot}": loss for slot, loss in report.losses.items()}
        values |= {"lr": report.lr, "images_per_second": report.images_per_second}
        self._write("epochs", values, epoch_step(self.method, report))

    def evaluated(self, record: StepRecord) -> None:
        """Write the accuracies after a task, by the number of classes seen."""
        values = {
            "accuracy/all": record.accuracy,
            "accuracy/base": record.base_accuracy,
            "accuracy/old": record.old_accuracy,
            "accuracy/new": record.new_accuracy,
        }
        if record.nme_accuracy is not None:
            values["accuracy/nme"] = record.nme_accuracy
        values |= {f"notes/{name}": value for name, value in record.notes.items()}
        known = {name: value for name, value in values.items() if not math.isnan(value)}
        self._write("tasks", known, record.classes_seen)

    def close(self) -> None:
        """Close the files; later events would go into new ones."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _write(self, name: str, values: Mapping[str, float], step: int) -> None:
        if name not in self._writers:
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            self._writers[name] = SummaryWriter(str(self.folder / name), purge_step=step)
        writer = self._writers[name]
        for tag, value in values.items():
            writer.add_scalar(tag, value, step)
        # A resumed run doesn't repeat what was checkpointed, so events must not stay in memory.
        writer.flush()
