"""Loggers, which receive the numbers of a run while it trains: one interface, several at once."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from densekd import json_checks
from densekd.files import DamagedFile, read_sealed_json, write_sealed_json
from densekd.json_checks import is_count, is_text, optional, table_of
from densekd.methods.method import Method
from densekd.parts import explain_errors
from densekd.runs.epochs import epoch_entry, read_epochs
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.training.callbacks import TrainingProgress

# A step is an epoch, counted over all tasks; or, after a task, the number of classes seen.
Axis = Literal["epochs", "tasks"]
LOGGERS_FILE = "loggers.json"
_KNOWN = table_of(json_checks.record({"id": optional(is_text), "tasks": is_count}))


@dataclass(frozen=True)
class LoggedRun:
    """What a logger learns about a run when it begins."""

    folder: Path
    settings: Mapping[str, Any]  # all of them, as nested sections
    id: str | None  # what `Logger.begin` returned when the run began; None if it begins now

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return self.folder.name


class Logger:
    """Receives the numbers of a run. This one ignores them; override what you need.

    Each step is logged once, even if the run is stopped or killed and resumed. A logger that is
    added when a run is resumed also gets the earlier steps. One logger can log several runs, one
    after the other.

    Example:
        >>> import densekd
        >>> class Accuracies(densekd.Logger):
        ...     def log(self, axis, step, numbers):
        ...         if axis == "tasks":
        ...             print(f"{step} classes: {numbers['accuracy/all'] > 0.1}")
        >>> _ = densekd.run(steps=1, epochs=1, quiet=True, loggers=[Accuracies()])
        5 classes: True
        10 classes: True
    """

    name = ""  # in messages and ``loggers.json``; by default the class's or function's name

    def begin(self, run: LoggedRun) -> str | None:
        """Begin or resume a run; return an id to find its record again, if that needs one."""

    def log(self, axis: Axis, step: int, numbers: Mapping[str, float]) -> None:
        """Log finite numbers by name, such as ``loss/ce`` or ``accuracy/all``, at a step."""

    def end(self, result: Mapping[str, Any] | None) -> None:
        """End the run with its result; None if it stops before it is finished."""


class RunLoggers(RunObserver):
    """Passes the numbers of a run on to its loggers, each step once over all calls.

    The file ``loggers.json`` in the run folder has the loggers' ids and what they have logged.
    """

    def __init__(self, folder: Path, loggers: Mapping[str, Logger], method: Method) -> None:
        self.folder, self.loggers, self.method = folder, loggers, method
        self._known: dict[str, dict[str, Any]] = {}
        self._epochs: dict[str, int] = {}  # the last epoch that each has logged

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Begin all loggers, and log the epochs that some have missed.

        Ids are written only afterwards, so a new logger that fails begins anew in the next call.
        """
        before: dict[str, dict[str, Any]] = {}
        with suppress(OSError, DamagedFile):  # then all loggers begin anew
            before = load_loggers(self.folder)
        epochs = read_epochs(self.folder)
        for name, logger in self.loggers.items():
            # A logger that the previous call didn't have begins anew.
            known = before.get(name, {})
            run = LoggedRun(self.folder, settings, known.get("id"))
            found = _call(name, logger.begin, run)
            self._known[name] = {"id": found, "tasks": known.get("tasks", 0)}
            self._epochs[name] = epochs[-1]["step"] if known and epochs else 0
        for entry in epochs:
            self._log_epoch(entry)
        if self._known:
            write_sealed_json(self.folder / LOGGERS_FILE, self._known)
        else:
            (self.folder / LOGGERS_FILE).unlink(missing_ok=True)

    def catch_up(self, folder: Path) -> None:
        """Log the epochs in a folder that loggers lack, such as those of a base of another run."""
        for entry in read_epochs(folder):
            self._log_epoch(entry)

    def report(self, report: TrainingProgress) -> None:
        """Log losses, learning rate and speed at the end of an epoch."""
        if report.ends_epoch:
            self._log_epoch(epoch_entry(self.method, report))

    def resumed(self, records: Sequence[StepRecord]) -> None:
        """Log the tasks of earlier calls that loggers lack."""
        for record in records:
            self.evaluated(record)

    def evaluated(self, record: StepRecord) -> None:
        """Log the accuracies after a task."""
        numbers = task_numbers(record)
        for name, logger in self.loggers.items():
            known = self._known[name]
            if known["tasks"] < record.classes_seen:
                _call(name, logger.log, "tasks", record.classes_seen, numbers)
                known["tasks"] = record.classes_seen
                write_sealed_json(self.folder / LOGGERS_FILE, self._known)

    def end(self, result: Mapping[str, Any] | None) -> None:
        """End all loggers that have begun, even if one fails."""
        with ExitStack() as ends:
            for name in reversed(self._known):
                ends.callback(_call, name, self.loggers[name].end, result)

    def _log_epoch(self, entry: Mapping[str, Any]) -> None:
        step, numbers = entry["step"], epoch_numbers(entry)
        for name, logger in self.loggers.items():
            if self._epochs[name] < step:
                _call(name, logger.log, "epochs", step, numbers)
                self._epochs[name] = step


def epoch_numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of ``epochs.jsonl``, by the names that loggers use."""
    numbers = {f"loss/{slot}": loss for slot, loss in entry["losses"].items()}
    return _finite({**numbers, **{name: entry.get(name) for name in ("lr", "images_per_second")}})


def task_numbers(record: StepRecord) -> dict[str, float]:
    """The numbers after a task, by the names that loggers use; unknown ones are left out."""
    held = record.validation
    numbers = {
        "accuracy/all": record.accuracy,
        "accuracy/base": record.base_accuracy,
        "accuracy/old": record.old_accuracy,
        "accuracy/new": record.new_accuracy,
        "accuracy/nme": record.nme_accuracy,
        "accuracy/task_incremental": record.task_incremental_accuracy,
        "accuracy/validation": None if held is None else held.accuracy,
        **{f"metrics/{name}": value for name, value in record.metrics.items()},
        **{f"notes/{name}": value for name, value in record.notes.items()},
    }
    return _finite(numbers)


def _finite(numbers: Mapping[str, float | None]) -> dict[str, float]:
    return {k: x for k, x in numbers.items() if x is not None and math.isfinite(x)}


def _call(name: str, function: Any, *arguments: object) -> Any:
    with explain_errors(f"The logger {name}"):
        return function(*arguments)


def load_loggers(folder: Path) -> dict[str, dict[str, Any]]:
    """Read a folder's ``loggers.json``: each logger's id, and the last ``classes_seen`` it logged.

    Raises:
        DamagedFile: it isn't what was written.
        FileNotFoundError: there is no file, because the run has no loggers.
    """
    found = read_sealed_json(folder / LOGGERS_FILE)
    if not _KNOWN(found):
        raise DamagedFile(f"{folder / LOGGERS_FILE} is damaged: it isn't what was saved.")
    return found
