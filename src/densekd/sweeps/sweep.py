"""Run the jobs of a sweep, and keep their states in ``runs.json`` over all calls of the command.

Jobs that share a base wait until one of them has trained it.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol, get_args

from densekd.config.settings_tree import plain
from densekd.files import write_atomically, write_json
from densekd.jobs.events import JobDone, JobEnd, JobEvent, JobFailed, JobProgress, JobStopped
from densekd.runs.locks import exclusive
from densekd.sweeps.experiment_file import read_experiment
from densekd.sweeps.jobs import SweepJob, SweepPlan

JobState = Literal["waiting", "running", "finished", "failed"]


class SweepRecord:
    """The states of all jobs, and of those that earlier calls with other axes had."""

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
        # Points that were run under other settings, or that turned out to be impossible, are
        # replaced by what they are now.
        points = [*(job.point for job in sweep.jobs), *(each.point for each in sweep.impossible)]
        now = [plain(point) for point in points]
        self._others = [entry for entry in known.values() if entry["point"] not in now]
        impossible = [{"point": plain(e.point), "reason": e.reason} for e in sweep.impossible]
        before_left_out = [e for e in before.get("left_out", []) if e["point"] not in now]
        self._left_out = [*impossible, *before_left_out]
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
            "left_out": self._left_out,
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


class JobQueue:
    """Chooses the next job: one for each base first, the others when their base is trained."""

    def __init__(self, jobs: Sequence[SweepJob]) -> None:
        self.waiting = list(jobs)
        self.running: list[SweepJob] = []
        self._training: set[str] = set()
        self._trained: set[str] = set()

    def next(self) -> SweepJob | None:
        """Take a job whose base no other job is training; None if there is none."""
        ready = [job for job in self.waiting if job.shares not in self._training]
        job = min(ready, key=lambda job: job.shares in self._trained, default=None)
        if job is not None:
            self.waiting.remove(job)
            self.running.append(job)
            if job.shares not in self._trained:
                self._training.add(job.shares)
        return job

    def note(self, job: SweepJob, event: JobEvent) -> None:
        """Update the queue after an event of a job."""
        ended = isinstance(event, get_args(JobEnd))
        if ended:
            self.running.remove(job)
        if isinstance(event, JobDone) or (isinstance(event, JobProgress) and event.shared):
            self._trained.add(job.shares)
        if ended or job.shares in self._trained:
            self._training.discard(job.shares)


class _WorkerPool(Protocol):
    """Where jobs run: `densekd.jobs.local.LocalPool` or `densekd.sweeps.ray.RayPool`."""

    @property
    def free(self) -> bool: ...
    def start(self, job: Any) -> object: ...
    def events(self, seconds: float) -> Iterator[tuple[Any, JobEvent]]: ...
    def stop(self) -> None: ...


class SweepObserver:
    """Receives the events of a sweep. This one ignores them; override what you need."""

    def job_started(self, job: SweepJob) -> None:
        """A job was started."""

    def job_event(self, job: SweepJob, event: JobEvent) -> None:
        """A job reported something, or ended."""

    def stop(self) -> bool:
        """Asked several times a second: whether all jobs should save and stop."""
        return False


def carry_out(record: SweepRecord, pool: _WorkerPool, observer: SweepObserver) -> bool:
    """Run the unfinished jobs of a sweep, and record how each ended.

    Returns:
        False if the observer stopped it.
    """
    queue, stopping = JobQueue(record.unfinished()), False
    while queue.running or (queue.waiting and not stopping):
        if not stopping and observer.stop():
            stopping = True
            pool.stop()
        while not stopping and pool.free and (job := queue.next()):
            record.set(job, "running")
            observer.job_started(job)
            pool.start(job)
        for job, event in pool.events(0.2):
            queue.note(job, event)
            _record_end(record, job, event, stopping)
            observer.job_event(job, event)
    record.write()
    return not stopping


def _record_end(record: SweepRecord, job: SweepJob, event: JobEvent, stopping: bool) -> None:
    if isinstance(event, JobDone):
        record.set(job, "finished")
    elif isinstance(event, JobStopped) and stopping:
        record.set(job, "waiting")
    elif isinstance(event, JobStopped):
        record.set(job, "failed", "its process was asked to stop, and saved its state.")
    elif isinstance(event, JobFailed):
        if event.trace:
            file = record.sweep.folder / "failures" / f"{job.folder.name}.txt"
            write_atomically(file, event.trace)
        record.set(job, "failed", event.reason)
