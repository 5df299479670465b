"""Carrying out a sweep: which job is when, with one base for those that have it in common."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from densekd.files import write_atomically
from densekd.jobs.events import JobDone, JobEvent, JobFailed, JobProgress, JobStopped
from densekd.sweeps.jobs import SweepJob
from densekd.sweeps.record import SweepRecord


class JobQueue:
    """Which job is next: first one for each base, and others when their base is there."""

    def __init__(self, jobs: Sequence[SweepJob]) -> None:
        self.waiting = list(jobs)
        self.running: list[SweepJob] = []
        self._training: set[str] = set()
        self._trained: set[str] = set()

    def next(self) -> SweepJob | None:
        """A job that nothing has to be waited for."""
        ready = [job for job in self.waiting if job.shares not in self._training]
        job = min(ready, key=lambda job: job.shares in self._trained, default=None)
        if job is not None:
            self.waiting.remove(job)
            self.running.append(job)
            if job.shares not in self._trained:
                self._training.add(job.shares)
        return job

    def note(self, job: SweepJob, event: JobEvent) -> None:
        """Take notice of what became of a job."""
        if isinstance(event, JobDone | JobStopped | JobFailed):
            self.running.remove(job)
        done = isinstance(event, JobDone) or (isinstance(event, JobProgress) and event.shared)
        if done:
            self._trained.add(job.shares)
        if done or isinstance(event, JobStopped | JobFailed):
            self._training.discard(job.shares)


class WorkerPool(Protocol):
    """Where jobs are done; see `densekd.jobs.local.LocalPool`."""

    @property
    def free(self) -> bool:
        """Whether a job can be started."""

    def start(self, job: Any) -> None:
        """Begin a job."""

    def events(self, seconds: float) -> Iterator[tuple[Any, JobEvent]]:
        """What there is to tell, waiting for it no longer than ``seconds``."""

    def stop(self) -> None:
        """Ask all jobs to save and leave."""


class SweepObserver:
    """Whom a sweep reports to; this one takes no notice."""

    def job_started(self, job: SweepJob) -> None:
        """A job is being done."""

    def job_event(self, job: SweepJob, event: JobEvent) -> None:
        """There is event of a job."""

    def stop(self) -> bool:
        """Asked several times a second: whether all jobs should save and leave."""
        return False


def carry_out(record: SweepRecord, pool: WorkerPool, observer: SweepObserver) -> bool:
    """Do what is left of a sweep, and write down what became of it.

    Returns:
        Whether it went to its end, rather than being asked to stop.
    """
    order, stopping = JobQueue(record.unfinished()), False
    while order.running or (order.waiting and not stopping):
        if not stopping and observer.stop():
            stopping = True
            pool.stop()
        while not stopping and pool.free and (job := order.next()):
            record.set(job, "running")
            observer.job_started(job)
            pool.start(job)
        for job, event in pool.events(0.2):
            order.note(job, event)
            _note(record, job, event, stopping)
            observer.job_event(job, event)
    record.write()
    return not stopping


def _note(record: SweepRecord, job: SweepJob, event: JobEvent, stopping: bool) -> None:
    if isinstance(event, JobDone):
        record.set(job, "finished")
    elif isinstance(event, JobStopped) and stopping:
        record.set(job, "waiting")
    elif isinstance(event, JobStopped):
        record.set(job, "failed", "its process was asked to stop, and saved where it was.")
    elif isinstance(event, JobFailed):
        if event.trace:
            write_atomically(
                record.sweep.folder / "failures" / f"{job.folder.name}.txt", event.trace
            )
        record.set(job, "failed", event.reason)
