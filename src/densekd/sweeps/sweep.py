"""Run the jobs of a sweep; ``runs.json`` keeps their states over all calls of the command.

Jobs that share a base wait until one of them has trained it. A search adds jobs: those that Optuna
proposes, and those that learn all tasks with the picked values.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from densekd.config.settings_tree import plain
from densekd.files import (
    DamagedFile,
    remove_leftovers,
    write_atomically,
    write_sealed_json,
    write_sealed_text,
)
from densekd.jobs.events import (
    JobDone,
    JobEnd,
    JobEvent,
    JobFailed,
    JobProgress,
    JobStopped,
    WorkerPool,
)
from densekd.runs.locks import exclusive
from densekd.runs.stored import SWEEP_FILE, load_sweep, read_or_warn, read_result
from densekd.sweeps.experiment_file import read_experiment
from densekd.sweeps.jobs import SweepJob, SweepPlan
from densekd.sweeps.pick import FIRST_TASKS, Pick, Trial, cell_of, pick_best

PRUNED = "its accuracy on validation images was below the median of other trials."
JobState = Literal["waiting", "running", "finished", "failed", "pruned"]


class SweepRecord:
    """The states of all jobs, and of jobs of earlier calls with other axes."""

    def __init__(self, sweep: SweepPlan, finished: Callable[[SweepJob], bool]) -> None:
        # What earlier calls recorded.
        consequence = "It is written again from the folders of its runs."
        before = read_or_warn(load_sweep, sweep.folder, consequence) or {}
        self._others: dict[str, Mapping[str, Any]] = {
            entry["folder"]: _ended(entry) for entry in before.get("runs", [])
        }
        self._entries: dict[Path, dict[str, Any]] = {}  # of the jobs, by their folder
        self._finished = finished
        self.sweep = dataclasses.replace(sweep, jobs=())
        self.add(*sweep.jobs)
        self.picks: list[Pick] = []  # made when all trials have ended
        # Points of this call replace those of earlier calls, which ran under other settings or are
        # known to be impossible now.
        points = [*(job.point for job in sweep.jobs), *(each.point for each in sweep.impossible)]
        now = [plain(point) for point in points]
        self._others = {k: e for k, e in self._others.items() if e["point"] not in now}
        impossible = [{"point": plain(e.point), "reason": e.reason} for e in sweep.impossible]
        before_left_out = [e for e in before.get("left_out", []) if e["point"] not in now]
        self._left_out = [*impossible, *before_left_out]
        self._seconds_before = before.get("seconds") or 0.0
        self._start = time.monotonic()
        self._job_starts: dict[Path, float] = {}

    def add(self, *jobs: SweepJob) -> None:
        """Add jobs; skip those that it already has."""
        for job in jobs:
            if job in self:
                continue
            # A relative path, so that the folder of all runs can be moved.
            folder = os.path.relpath(job.folder, self.sweep.folder)
            self._entries[job.folder] = {
                "folder": folder,
                "point": plain(job.point),
                "state": "finished" if self._finished(job) else "waiting",
                "reason": None,
                "seconds": self._others.pop(folder, {}).get("seconds", 0.0),
            }
            self.sweep = dataclasses.replace(self.sweep, jobs=(*self.sweep.jobs, job))

    def __contains__(self, job: SweepJob) -> bool:
        """Whether it has a job with the folder of this one."""
        return job.folder in self._entries

    def unfinished(self) -> list[SweepJob]:
        """The jobs left to do, failed ones included."""
        done = ("finished", "pruned")
        return [job for job in self.sweep.jobs if self.entry(job)["state"] not in done]

    def pick(self) -> None:
        """Pick the best values by validation, and add the jobs that learn all tasks with them."""
        experiment = self.sweep.experiment
        keys, tasks = experiment.searched, experiment.search and experiment.search.tasks
        trials = [
            Trial(job.point, validation_of(job))
            for job in self.sweep.jobs
            if tasks is None or FIRST_TASKS in job.point
        ]
        self.picks = pick_best(trials, keys)
        for pick in self.picks:
            points = [
                {**{k: v for k, v in point.items() if k not in keys}, **pick.values}
                for point in experiment.points()
                if cell_of(point, keys) == pick.cell
            ]
            self.add(*(self.sweep.job(point) for point in points))

    def is_pick(self, job: SweepJob) -> bool:
        """Whether a job's test accuracy counts: in a search, only if its values were picked."""
        if self.sweep.experiment.search is None:
            return True
        return any(pick.is_of(job.point, self.sweep.experiment.searched) for pick in self.picks)

    def set(self, job: SweepJob, state: JobState, reason: str | None = None) -> None:
        """Change the state of a job, and write the file."""
        entry = self._entries[job.folder]
        if state == "running":
            self._job_starts[job.folder] = time.monotonic()
        elif job.folder in self._job_starts:
            entry["seconds"] += time.monotonic() - self._job_starts.pop(job.folder)
        entry |= {"state": state, "reason": reason}
        self.write()

    def write(self) -> None:
        """Write the file."""
        write_sealed_json(self.sweep.folder / SWEEP_FILE, self.content())

    def content(self) -> dict[str, Any]:
        """The content of the file; ``seconds`` is wall-clock time over all calls."""
        content = {
            "scale": self.sweep.scale,
            "settings": plain(self.sweep.changes),
            "seconds": self._seconds_before + time.monotonic() - self._start,
            "runs": [*self._entries.values(), *self._others.values()],
            "left_out": self._left_out,
        }
        if (search := self.sweep.experiment.search) is not None:
            picks = [plain(dataclasses.asdict(pick)) for pick in self.picks]
            keys = list(search.parameters)
            content["search"] = {"keys": keys, "tasks": search.tasks, "picks": picks}
        return content

    def entry(self, job: SweepJob) -> Mapping[str, Any]:
        """The state, reason and seconds of a job."""
        return self._entries[job.folder]


def _ended(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry of an earlier call; a job left as running was killed, so it waits again."""
    return {**entry, "state": "waiting"} if entry.get("state") == "running" else entry


def validation_of(job: SweepJob) -> float | None:
    """The average incremental accuracy of a finished run on validation images."""
    held = (read_result(job.folder) or {}).get("validation") or {}
    return held.get("average_incremental_accuracy")


@contextmanager
def sweep_folder(sweep: SweepPlan) -> Iterator[None]:
    """Lock a sweep's folder and keep a copy of the experiment file in it.

    Raises:
        Busy: if another process works in the folder.
        ValueError: if the folder belongs to an experiment with other settings.
    """
    file = sweep.folder / "experiment.toml"
    with exclusive(sweep.folder):
        remove_leftovers(sweep.folder)
        with add_repair_hint(sweep.folder):
            before = read_experiment(file, sealed=True).settings if file.exists() else None
        if before not in (None, sweep.experiment.settings):
            raise ValueError(
                f"{file} has other settings than {sweep.experiment.name} has now, and one table "
                "can't show both; rename the experiment, or give another --out."
            )
        write_sealed_text(file, sweep.experiment.text)
        yield


@contextmanager
def add_repair_hint(folder: Path) -> Iterator[None]:
    """Add to an error about a damaged file of a sweep how to set the file aside."""
    try:
        yield
    except DamagedFile as error:
        raise ValueError(f"{error} `densekd check {folder} --repair` sets it aside.") from None


class JobQueue:
    """Chooses the next job: first one for each base, the others once their base is trained."""

    def __init__(self, jobs: Sequence[SweepJob]) -> None:
        self.waiting = list(jobs)
        self.running: list[SweepJob] = []
        self._trained: set[str] = set()

    def next(self) -> SweepJob | None:
        """Take a job whose base no other job is training now; None if there is none."""
        training = {job.waits_for for job in self.running} - self._trained
        ready = [job for job in self.waiting if job.waits_for not in training]
        job = min(ready, key=lambda job: job.waits_for in self._trained, default=None)
        if job is not None:
            self.waiting.remove(job)
            self.running.append(job)
        return job

    def note(self, job: SweepJob, event: JobEvent) -> None:
        """Update the queue after an event of a job."""
        if isinstance(event, get_args(JobEnd)):
            self.running.remove(job)
        if isinstance(event, JobDone) or (isinstance(event, JobProgress) and event.base_done):
            self._trained.add(job.waits_for)


class JobSource:
    """Proposes jobs while others run, and says which to prune. This one proposes none."""

    def propose(self) -> SweepJob | None:
        """A further job to run; None if there is none now."""
        return None

    def handle_event(self, job: SweepJob, event: JobEvent) -> bool:
        """Handle a job's event; True to prune the job."""
        return False


class SweepObserver:
    """Receives the events of a sweep. This one ignores them; override what you need."""

    def job_started(self, job: SweepJob) -> None:
        """A job was started."""

    def job_event(self, job: SweepJob, event: JobEvent) -> None:
        """A job reported something, or ended."""

    def stop(self) -> bool:
        """Whether all jobs should save and stop; called several times a second."""
        return False


def carry_out(record: SweepRecord, pool: WorkerPool, observer: SweepObserver) -> bool:
    """Run the unfinished jobs of a sweep, and record how each ended; False if it was stopped.

    A search runs first. Then the picked values learn all tasks, unless their trials already did.
    """
    search = record.sweep.experiment.search
    if search is not None and search.kind == "optuna":
        from densekd.sweeps.optuna_trials import OptunaTrials

        with closing(OptunaTrials(record, search)) as trials:
            went_on = _Jobs(record, pool, observer, trials).do()
    else:
        went_on = _Jobs(record, pool, observer, JobSource()).do()
    if went_on and search is not None:
        record.pick()
        went_on = _Jobs(record, pool, observer, JobSource()).do()
    record.write()
    return went_on


class _Jobs:
    """Runs the jobs of a sweep until none are left or the observer stops it."""

    def __init__(
        self, record: SweepRecord, pool: WorkerPool, observer: SweepObserver, source: JobSource
    ) -> None:
        self.record, self.pool, self.observer, self.source = record, pool, observer, source
        # Jobs that failed in this call are tried again only in the next.
        left = [job for job in record.unfinished() if record.entry(job)["state"] != "failed"]
        self.queue, self.stopping, self.pruned = JobQueue(left), False, set[Path]()

    def do(self) -> bool:
        """Run all jobs; False if the observer stopped them."""
        while True:
            if not self.stopping and self.observer.stop():
                self.stopping = True
                self.pool.stop()
            while not self.stopping and self.pool.free and (job := self._next()):
                self.record.set(job, "running")
                self.observer.job_started(job)
                self.pool.start(job)
            if not self.queue.running and (self.stopping or not self.queue.waiting):
                return not self.stopping
            for job, event in self.pool.events(0.2):
                self._note(job, event)

    def _next(self) -> SweepJob | None:
        if not self.queue.waiting and (job := self.source.propose()) is not None:
            self.record.add(job)
            self.queue.waiting.append(job)
        return self.queue.next()

    def _note(self, job: SweepJob, event: JobEvent) -> None:
        self.queue.note(job, event)
        if self.source.handle_event(job, event) and job.folder not in self.pruned:
            self.pruned.add(job.folder)
            self.pool.stop_job(job)
        self._record_end(job, event)
        self.observer.job_event(job, event)

    def _record_end(self, job: SweepJob, event: JobEvent) -> None:
        record = self.record
        if isinstance(event, JobDone):
            record.set(job, "finished")
        elif isinstance(event, JobStopped) and job.folder in self.pruned:
            record.set(job, "pruned", PRUNED)
        elif isinstance(event, JobStopped) and self.stopping:
            record.set(job, "waiting")
        elif isinstance(event, JobStopped):
            record.set(job, "failed", "its process was asked to stop, and saved its state.")
        elif isinstance(event, JobFailed):
            if event.trace:
                file = record.sweep.folder / "failures" / f"{job.folder.name}.txt"
                write_atomically(file, event.trace)
            record.set(job, "failed", event.reason)
