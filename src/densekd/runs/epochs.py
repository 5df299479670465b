"""``epochs.jsonl``: the losses of each epoch, one JSON object per line."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from densekd.files import to_json
from densekd.methods.method import Method
from densekd.runs.observer import RunObserver
from densekd.training.callbacks import TrainingProgress

EPOCHS_FILE = "epochs.jsonl"


class EpochLog(RunObserver):
    """Appends a line for each epoch, so that a killed process loses at most the last one.

    A line has ``task``, ``phase``, ``epoch``, ``step`` (the epoch counted over all tasks and
    phases), ``lr``, ``images_per_second`` and ``losses`` by slot. Epochs count from 1. A resumed
    run may repeat an epoch; the last line counts.

    Args:
        method: says how many epochs other tasks have; without it, a step is an epoch.
        folders: where to write the file.
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
            "step": epoch_step(self.method, report) if self.method else report.epoch + 1,
            "lr": report.lr,
            "images_per_second": report.images_per_second,
            "losses": dict(report.losses),
        }
        line = json.dumps(json.loads(to_json(facts))).encode()  # without NaN
        for folder in self.folders:
            _append(folder / EPOCHS_FILE, line)


def epoch_step(method: Method, report: TrainingProgress) -> int:
    """Count the epochs of all tasks and phases up to the one of a report."""
    base, increment = method.base, method.increment
    phases = list(increment if report.task else base)
    done = phases[: [phase.name for phase in phases].index(report.phase)]
    if report.task:
        done += [*base, *increment * (report.task - 1)]
    return sum(phase.schedule.epochs for phase in done) + report.epoch + 1


def read_epochs(folder: Path) -> list[dict[str, Any]]:
    """Read the epochs in a folder in training order, each once; empty if there are none.

    Compressions begun before there was an ``epochs.jsonl`` have an ``epochs.json``.
    """
    found: dict[int, dict[str, Any]] = {}
    with suppress(FileNotFoundError, ValueError):
        earlier = json.loads((folder / "epochs.json").read_text("utf-8"))
        found |= {entry["epoch"]: entry for entry in earlier.values()}
    with suppress(FileNotFoundError):
        for line in (folder / EPOCHS_FILE).read_bytes().splitlines():
            with suppress(ValueError):  # a killed process may leave half a line
                entry = json.loads(line)
                found[entry["step"]] = entry
    return [found[step] for step in sorted(found)]


def _append(file: Path, line: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":  # a killed process left half a line
                line = b"\n" + line
        stream.write(line + b"\n")
