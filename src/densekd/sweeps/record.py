"""The record of a sweep: what became of each of its jobs, over all calls."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from densekd.config.settings_tree import plain
from densekd.files import write_atomically, write_json
from densekd.sweeps.experiment_file import read_experiment
from densekd.sweeps.jobs import SweepJob, SweepPlan

JobState = Literal["waiting", "running", "finished", "failed"]


class SweepRecord:
    """What became of each job, in ``runs.json``, over all calls of a sweep.

    Jobs of earlier calls with other axes stay in it.
    """

    def __init__(self, sweep: SweepPlan, finished: Callable[[SweepJob], bool]) -> None:
        self.sweep = sweep
        self.file = sweep.folder / "runs.json"
        before = _read(self.file)
        known = {entry["folder"]: entry for entry in before.get("runs", [])}
        self._entries: dict[int, dict[str, Any]] = {}
        for number, job in enumerate(sweep.jobs):
            # From here, so that the folder of all runs can be moved.
            folder = os.path.relpath(job.folder, sweep.folder)
            self._entries[number] = {
                "folder": folder,
                "point": plain(job.point),
                "state": "finished" if finished(job) else "waiting",
                "reason": None,
                "seconds": known.pop(folder, {}).get("seconds", 0.0),
            }
        self._others = list(known.values())
        self._before = before.get("seconds", 0.0)
        self._since = time.monotonic()
        self._begun: dict[int, float] = {}

    def unfinished(self) -> list[SweepJob]:
        """The jobs that are to be done."""
        entries = self._entries.items()
        return [self.sweep.jobs[n] for n, entry in entries if entry["state"] != "finished"]

    def set(self, job: SweepJob, state: JobState, reason: str | None = None) -> None:
        """Write down what became of a job."""
        number = self.sweep.jobs.index(job)
        entry = self._entries[number]
        if state == "running":
            self._begun[number] = time.monotonic()
        elif number in self._begun:
            entry["seconds"] += time.monotonic() - self._begun.pop(number)
        entry |= {"state": state, "reason": reason}
        self.write()

    def write(self) -> None:
        """Write all of it."""
        write_json(self.file, self.content())

    def content(self) -> dict[str, Any]:
        """What is written; ``seconds`` are those of the clock, over all calls."""
        return {
            "scale": self.sweep.scale,
            "settings": plain(self.sweep.changes),
            "seconds": self._before + time.monotonic() - self._since,
            "runs": [*self._entries.values(), *self._others],
        }

    def entry(self, job: SweepJob) -> Mapping[str, Any]:
        """What is known of a job."""
        return self._entries[self.sweep.jobs.index(job)]


@contextmanager
def opened(sweep: SweepPlan, text: str) -> Iterator[None]:
    """Keep the experiment's file beside its record, and other processes away from both.

    Args:
        sweep: whose.
        text: the content of the experiment's file.
    """
    file = sweep.folder / "experiment.toml"
    sweep.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(sweep.folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"Another process is working on {sweep.folder}; wait for it, or stop it first."
        ) from None
    try:
        if file.exists() and read_experiment(file).settings != sweep.experiment.settings:
            raise ValueError(
                f"{file} has other settings than {sweep.experiment.name} has now, and one table "
                "can't show both; rename the experiment, or give another --out."
            )
        write_atomically(file, text)
        yield
    finally:
        lock.release()


def _read(file: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError, ValueError):
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return content
    return {}
