"""``runs.json``: the state of each job of a sweep, over all calls of the command."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

from densekd.config.settings_tree import plain
from densekd.files import write_atomically, write_json
from densekd.runs.locks import exclusive
from densekd.sweeps.experiment_file import read_experiment
from densekd.sweeps.jobs import SweepJob, SweepPlan

JobState = Literal["waiting", "running", "finished", "failed"]


class SweepRecord:
    """The states of all jobs, and of those that earlier calls with other axes had.

    Args:
        sweep: the sweep.
        finished: whether a job has all its results.
    """

    def __init__(self, sweep: SweepPlan, finished: Callable[[SweepJob], bool]) -> None:
        self.sweep = sweep
        self.file = sweep.folder / "runs.json"
        before: dict[str, Any] = {}
        with suppress(FileNotFoundError, ValueError):
            before = json.loads(self.file.read_text("utf-8"))
        known = {entry["folder"]: entry for entry in before.get("runs", [])}
        self._entries: dict[int, dict[str, Any]] = {}
        for number, job in enumerate(sweep.jobs):
            # A relative path, so that the folder of all runs can be moved.
            folder = os.path.relpath(job.folder, sweep.folder)
            self._entries[number] = {
                "folder": folder,
                "point": plain(job.point),
                "state": "finished" if finished(job) else "waiting",
                "reason": None,
                "seconds": known.pop(folder, {}).get("seconds", 0.0),
            }
        self._others = list(known.values())
        self._seconds_before = before.get("seconds", 0.0)
        self._start = time.monotonic()
        self._job_starts: dict[int, float] = {}

    def unfinished(self) -> list[SweepJob]:
        """The jobs that are left to do."""
        return [job for job in self.sweep.jobs if self.entry(job)["state"] != "finished"]

    def set(self, job: SweepJob, state: JobState, reason: str | None = None) -> None:
        """Change the state of a job, and write the file."""
        number = self.sweep.jobs.index(job)
        entry = self._entries[number]
        if state == "running":
            self._job_starts[number] = time.monotonic()
        elif number in self._job_starts:
            entry["seconds"] += time.monotonic() - self._job_starts.pop(number)
        entry |= {"state": state, "reason": reason}
        self.write()

    def write(self) -> None:
        """Write the file."""
        write_json(self.file, self.content())

    def content(self) -> dict[str, Any]:
        """The content of the file; ``seconds`` is wall-clock time over all calls."""
        return {
            "scale": self.sweep.scale,
            "settings": plain(self.sweep.changes),
            "seconds": self._seconds_before + time.monotonic() - self._start,
            "runs": [*self._entries.values(), *self._others],
        }

    def entry(self, job: SweepJob) -> Mapping[str, Any]:
        """The state, reason and seconds of a job."""
        return self._entries[self.sweep.jobs.index(job)]


@contextmanager
def sweep_folder(sweep: SweepPlan, text: str) -> Iterator[None]:
    """Lock a sweep's folder and keep a copy of the experiment file, ``text``, in it.

    Raises:
        Busy: if another process works in the folder.
        ValueError: if the folder belongs to an experiment with other settings.
    """
    file = sweep.folder / "experiment.toml"
    with exclusive(sweep.folder):
        if file.exists() and read_experiment(file).settings != sweep.experiment.settings:
            raise ValueError(
                f"{file} has other settings than {sweep.experiment.name} has now, and one table "
                "can't show both; rename the experiment, or give another --out."
            )
        write_atomically(file, text)
        yield
