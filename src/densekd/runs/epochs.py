"""What is written while a run trains: ``epochs.jsonl``, and events for TensorBoard."""

import logging
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densekd.files import (
    DamagedFile,
    read_regular_file,
    read_sealed_json,
    read_sealed_line,
    sealed_line,
)
from densekd.methods.method import Method
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.shapes import is_count, is_measure, record, table_of
from densekd.training.callbacks import TrainingProgress

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EPOCHS_FILE = "epochs.jsonl"  # one JSON object per line
_MOST_BYTES = 256 << 20
_EARLIER = record({"epoch": is_count, "losses": table_of(is_measure)})
_EPOCH = record({"step": is_count, "epoch": is_count, "losses": table_of(is_measure)})

logger = logging.getLogger(__name__)


class EpochLog(RunObserver):
    """Appends a line for each epoch, so that a killed process loses at most the last one.

    A line has ``task``, ``phase``, ``epoch``, ``step`` (the epoch counted over all tasks and
    phases; without a method, the epoch itself), ``lr``, ``images_per_second`` and ``losses`` by
    slot. Epochs count from 1. A resumed run may repeat an epoch; the last line counts.
    """

    def __init__(self, method: Method | None, *folders: Path) -> None:
        self.method, self.folders = method, folders

    def report(self, report: TrainingProgress) -> None:
        """Write a line at the end of an epoch."""
        if not report.ends_epoch:
            return
        facts = {
            "task": report.task,
            "phase": report.phase,
            "epoch": report.epoch + 1,
            "step": _epoch_step(self.method, report) if self.method else report.epoch + 1,
            "lr": report.lr,
            "images_per_second": report.images_per_second,
            "losses": dict(report.losses),
        }
        line = sealed_line(facts)
        for folder in self.folders:
            _append(folder / EPOCHS_FILE, line)


def _epoch_step(method: Method, report: TrainingProgress) -> int:
    """Count the epochs of all tasks and phases up to the one of a report."""
    base, increment = method.base, method.increment
    phases = list(increment if report.task else base)
    done = phases[: [phase.name for phase in phases].index(report.phase)]
    if report.task:
        done += [*base, *increment * (report.task - 1)]
    return sum(phase.schedule.epochs for phase in done) + report.epoch + 1


def read_epochs(folder: Path) -> list[dict[str, Any]]:
    """Read the epochs in a folder in training order, each once; empty if there are none.

    Compressions begun before there was an ``epochs.jsonl`` have an ``epochs.json``. Logs a warning
    if lines were changed; they are left out.
    """
    found: dict[int, dict[str, Any]] = {}
    with suppress(FileNotFoundError, DamagedFile):
        earlier = read_sealed_json(folder / "epochs.json", unsealed=True).values()
        found |= {entry["epoch"]: entry for entry in earlier if _EARLIER(entry)}
    epochs, damaged = epoch_lines(folder)
    if damaged is not None:
        logger.warning("%s It is left out of the losses.", damaged)
    found |= {entry["step"]: entry for entry in epochs}
    return [found[step] for step in sorted(found)]


def epoch_lines(folder: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The intact lines of a folder's ``epochs.jsonl``, and a sentence on damaged ones, if any."""
    file = folder / EPOCHS_FILE
    try:
        content = read_regular_file(file, _MOST_BYTES)
    except FileNotFoundError:
        return [], None
    except DamagedFile as error:
        return [], str(error)
    # A killed process may leave half a line at the end.
    lines = [read_sealed_line(line) for line in content.split(b"\n")[:-1]]
    known = [line for line in lines if line is not None and _EPOCH(line)]
    wrong = [number for number, line in enumerate(lines, 1) if not _EPOCH(line)]
    problem = f"{file} is damaged: line {wrong[0]} isn't what was saved." if wrong else None
    return known, problem


def tensorboard_installed() -> bool:
    """Whether events can be written."""
    return find_spec("tensorboard") is not None


class TensorBoardWriter(RunObserver):
    """Writes losses by epoch to ``epochs`` and accuracies by classes seen to ``tasks``.

    A resumed run hides the events that it repeats.
    """

    def __init__(self, folder: Path, method: Method) -> None:
        self.folder, self.method = folder, method
        self._writers: dict[str, SummaryWriter] = {}

    def report(self, report: TrainingProgress) -> None:
        """Write losses, learning rate and speed at the end of an epoch."""
        if not report.ends_epoch:
            return
        values = {f"loss/{slot}": loss for slot, loss in report.losses.items()}
        values |= {"lr": report.lr, "images_per_second": report.images_per_second}
        self._write("epochs", values, _epoch_step(self.method, report))

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


def _append(file: Path, line: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    # A link could lead to any file of this computer.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(file, flags, 0o666), "r+b") as stream:
        if size := stream.seek(0, os.SEEK_END):
            stream.seek(size - 1)
            if stream.read(1) != b"\n":  # a killed process, or a full disk, left half a line
                stream.seek(0)
                stream.truncate(stream.read().rfind(b"\n") + 1)
        stream.write(line + b"\n")
