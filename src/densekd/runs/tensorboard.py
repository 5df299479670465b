"""Events for TensorBoard, to callback a run; what counts is stored elsewhere."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from densekd.methods.method import Method
from densekd.training.callbacks import TrainingProgress

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from densekd.runs.record import StepRecord


class TensorBoardWriter:
    """Two curves' worth of events: ``epochs``, over all tasks' epochs, and ``tasks``, over classes.

    A run that is resumed hides the events that it is about to repeat.

    Args:
        folder: where the events go; it is made when there are some.
        method: tells how many epochs the tasks before have, whether or not they were trained here.
    """

    def __init__(self, folder: Path, method: Method) -> None:
        self.folder = folder
        self.method = method
        self._writers: dict[str, SummaryWriter] = {}

    def report(self, report: TrainingProgress) -> None:
        """Write the losses, the learning rate and the speed at the end of an epoch."""
        if not report.ends_epoch:
            return
        values = {f"loss/{slot}": loss for slot, loss in report.losses.items()}
        values |= {"lr": report.lr, "images_per_second": report.images_per_second}
        self._write("epochs", values, self._epochs_before(report) + report.epoch + 1)

    def evaluated(self, record: "StepRecord") -> None:
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
        """Close the files; more events would go into new ones."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _epochs_before(self, report: TrainingProgress) -> int:
        """The epochs of all phases before this one, over all tasks."""
        base, increment = self.method.base, self.method.increment
        phases = list(increment if report.task else base)
        done = phases[: [phase.name for phase in phases].index(report.phase)]
        if report.task:
            done += [*base, *increment * (report.task - 1)]
        return sum(phase.schedule.epochs for phase in done)

    def _write(self, name: str, values: Mapping[str, float], step: int) -> None:
        if name not in self._writers:
            # Imported when used, for it takes a while.
            from torch.utils.tensorboard import SummaryWriter

            self._writers[name] = SummaryWriter(str(self.folder / name), purge_step=step)
        writer = self._writers[name]
        for tag, value in values.items():
            writer.add_scalar(tag, value, step)
        # What is checkpointed is not repeated, so it must not wait in memory.
        writer.flush()
