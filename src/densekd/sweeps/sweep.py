"""Carrying out a sweep: which job is when, with one base for those that have it in common."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from densekd.files import write_atomically
from densekd.sweeps.jobs import SweepJob
from densekd.sweeps.local import JobDone, JobEvent, JobFailed, JobProgress, JobStopped
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

    def note(self, job: SweepJob, news: JobEvent) -> None:
        """Take notice of what became of a job."""
        if isinstance(news, JobDone | JobStopped | JobFailed):
            self.running.remove(job)
        done = isinstance(news, JobDone) or (isinstance(news, JobProgress) and news.shared)
        if done:
            self._trained.add(job.shares)
        if done or isinstance(news, JobStopped | JobFailed):
            self._training.discard(job.shares)


class WorkerPool(Protocol):
    """Where jobs are done; see `densekd.sweeps.local.LocalPool`."""

    @property
    def free(self) -> bool:
        """Whether a job can be started."""

    def start(self, job: Any) -> None:
        """Begin a job."""

    def news(self, seconds: float) -> Iterator[tuple[Any, JobEvent]]:
        """What there is to tell, waiting for it no longer than ``seconds``."""

    def stop(self) -> None:
        """Ask all jobs to save and leave."""


class SweepObserver:
    """Whom a sweep reports to; this one takes no notice."""

    def began(self, job: SweepJob) -> None:
        """A job is being done."""

    def heard(self, job: SweepJob, news: JobEvent) -> None:
        """There is news of a job."""

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
            observer.began(job)
            pool.start(job)
        for job, news in pool.news(0.2):
            order.note(job, news)
            _note(record, job, news, stopping)
            observer.heard(job, news)
    record.write()
    return not stopping


def _note(record: SweepRecord, job: SweepJob, news: JobEvent, stopping: bool) -> None:
    if isinstance(news, JobDone):
        record.set(job, "finished")
    elif isinstance(news, JobStopped) and stopping:
        record.set(job, "waiting")
    elif isinstance(news, JobStopped):
        record.set(job, "failed", "its process was asked to stop, and saved where it was.")
    elif isinstance(news, JobFailed):
        if news.trace:
            write_atomically(
                record.sweep.folder / "failures" / f"{job.folder.name}.txt", news.trace
            )
        record.set(job, "failed", news.reason)
