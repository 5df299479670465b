"""Run the jobs of a sweep; jobs that share a base wait until one of them has trained it."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, get_args

from densekd.files import write_atomically
from densekd.jobs.events import JobDone, JobEnd, JobEvent, JobFailed, JobProgress, JobStopped
from densekd.sweeps.jobs import SweepJob
from densekd.sweeps.record import SweepRecord


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


class WorkerPool(Protocol):
    """Where jobs run, such as `densekd.jobs.local.LocalPool`."""

    @property
    def free(self) -> bool:
        """Whether another job can be started."""

    def start(self, job: Any) -> None:
        """Start a job."""

    def events(self, seconds: float) -> Iterator[tuple[Any, JobEvent]]:
        """Give new events, waiting at most ``seconds`` for the first."""

    def stop(self) -> None:
        """Ask all jobs to save their state and stop."""


class SweepObserver:
    """Receives the events of a sweep. This one ignores them; override what you need."""

    def job_started(self, job: SweepJob) -> None:
        """A job was started."""

    def job_event(self, job: SweepJob, event: JobEvent) -> None:
        """A job reported something, or ended."""

    def stop(self) -> bool:
        """Asked several times a second: whether all jobs should save and stop."""
        return False


def carry_out(record: SweepRecord, pool: WorkerPool, observer: SweepObserver) -> bool:
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
