"""What every run writes while it trains: ``epochs.jsonl`` and ``steps.csv``."""

import csv
import io
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from densekd.config.settings_tree import flat
from densekd.files import (
    DamagedFile,
    read_regular_file,
    read_sealed_json,
    read_sealed_line,
    sealed_line,
    write_atomically,
)
from densekd.json_checks import is_count, is_measure, record, table_of
from densekd.methods.method import Method
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.training.callbacks import TrainingProgress

EPOCHS_FILE = "epochs.jsonl"  # one JSON object per line
STEPS_FILE = "steps.csv"
_MOST_BYTES = 256 << 20
_EARLIER = record({"epoch": is_count, "losses": table_of(is_measure)})
_EPOCH = record({"step": is_count, "epoch": is_count, "losses": table_of(is_measure)})

logger = logging.getLogger(__name__)


class EpochLog(RunObserver):
    """Appends a line for each epoch, so that a killed process loses at most the last one.

    A line has ``task``, ``phase``, ``epoch``, ``step`` (the epoch counted over all tasks and
    phases; without a method, the same as ``epoch``), ``lr``, ``images_per_second`` and ``losses``
    by slot. Epochs count from 1. When a resumed run repeats epochs, their lines are replaced.
    """

    def __init__(self, method: Method | None, *folders: Path) -> None:
        self.method, self.folders = method, folders
        self._begun = False

    def report(self, report: TrainingProgress) -> None:
        """Write a line at the end of an epoch."""
        if not report.ends_epoch:
            return
        facts = epoch_entry(self.method, report)
        line = sealed_line(facts)
        for folder in self.folders:
            if not self._begun:
                _drop(folder, facts["step"])
            _append(folder / EPOCHS_FILE, line)
        self._begun = True


def epoch_entry(method: Method | None, report: TrainingProgress) -> dict[str, Any]:
    """The content of the line for the epoch that a report ends."""
    return {
        "task": report.task,
        "phase": report.phase,
        "epoch": report.epoch + 1,
        "step": _epoch_step(method, report) if method else report.epoch + 1,
        "lr": report.lr,
        "images_per_second": report.images_per_second,
        "losses": dict(report.losses),
    }


def _epoch_step(method: Method, report: TrainingProgress) -> int:
    """The number of a report's epoch, counted from 1 over all tasks and phases."""
    base, increment = method.base, method.increment
    phases = list(increment if report.task else base)
    done = phases[: [phase.name for phase in phases].index(report.phase)]
    if report.task:
        done += [*base, *increment * (report.task - 1)]
    return sum(phase.schedule.epochs for phase in done) + report.epoch + 1


def read_epochs(folder: Path) -> list[dict[str, Any]]:
    """Read the epochs in a folder in training order, each once; empty if there are none.

    Compressions that an earlier version began have those epochs in an ``epochs.json``. Changed
    lines are left out, with a warning.
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
    """The intact lines of a folder's ``epochs.jsonl``, and a sentence on damage, if any."""
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


def copy_epochs(source: Path, target: Path) -> None:
    """Copy the ``epochs.jsonl`` in ``source``, if there is one, over that in ``target``."""
    with suppress(FileNotFoundError, DamagedFile):
        content = read_regular_file(source / EPOCHS_FILE, _MOST_BYTES)
        write_atomically(target / EPOCHS_FILE, content)


class StepTable(RunObserver):
    """Writes ``steps.csv``: a line for each task learned, with all numbers of its record.

    Lists, such as the accuracies of each class, are left out; ``result.json`` has them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: list[dict[str, object]] = []

    def resumed(self, records: Sequence[StepRecord]) -> None:
        """Write the lines of tasks that earlier calls learned."""
        self._rows = [_row(record) for record in records]
        self._write()

    def evaluated(self, record: StepRecord) -> None:
        """Add the line of a task."""
        self._rows.append(_row(record))
        self._write()

    def _write(self) -> None:
        text = io.StringIO()
        columns = dict.fromkeys(key for row in self._rows for key in row)
        writer = csv.DictWriter(text, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_atomically(self.folder / STEPS_FILE, text.getvalue())


def _row(record: StepRecord) -> dict[str, object]:
    """The numbers of a record by column; None for NaN, which gives an empty cell."""
    known = {"task": record.number + 1, "classes_seen": record.classes_seen}
    facts = flat({**known, **asdict(record)})
    lists = [key for key, value in facts.items() if isinstance(value, tuple | list)]
    left_out = ("number", "validation", *lists)  # `flat` splits ``validation`` unless it is None
    return {k: None if x != x else x for k, x in facts.items() if k not in left_out}


def _drop(folder: Path, step: int) -> None:
    """Drop the lines of a step and of later steps."""
    file = folder / EPOCHS_FILE
    with suppress(FileNotFoundError, DamagedFile):
        lines = read_regular_file(file, _MOST_BYTES).split(b"\n")[:-1]
        kept = [line for line in lines if not _is_from(step, read_sealed_line(line))]
        if len(kept) < len(lines):
            write_atomically(file, b"".join(line + b"\n" for line in kept))


def _is_from(step: int, line: dict[str, Any] | None) -> bool:
    return line is not None and _EPOCH(line) and line["step"] >= step


def _append(file: Path, line: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    # Don't follow a link, which could lead to any file of this computer.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(file, flags, 0o666), "r+b") as stream:
        if size := stream.seek(0, os.SEEK_END):
            stream.seek(size - 1)
            if stream.read(1) != b"\n":  # a killed process, or a full disk, left half a line
                stream.seek(0)
                stream.truncate(stream.read().rfind(b"\n") + 1)
        stream.write(line + b"\n")
