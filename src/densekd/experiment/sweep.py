"""Carrying out a sweep: which job is when, with one base for those that have it in common."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from densekd.experiment.ledger import Ledger
from densekd.experiment.plan import Job
from densekd.experiment.workers import Done, Failed, Halted, News, Progress
from densekd.files import write_atomically


class Order:
    """Which job is next: first one for each base, and others when their base is there."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.waiting = list(jobs)
        self.running: list[Job] = []
        self._training: set[str] = set()
        self._trained: set[str] = set()

    def next(self) -> Job | None:
        """A job that nothing has to be waited for."""
        ready = [job for job in self.waiting if job.shares not in self._training]
        job = min(ready, key=lambda job: job.shares in self._trained, default=None)
        if job is not None:
            self.waiting.remove(job)
            self.running.append(job)
            if job.shares not in self._trained:
                self._training.add(job.shares)
        return job

    def note(self, job: Job, news: News) -> None:
        """Take notice of what became of a job."""
        if isinstance(news, Done | Halted | Failed):
            self.running.remove(job)
        done = isinstance(news, Done) or (isinstance(news, Progress) and news.shared)
        if done:
            self._trained.add(job.shares)
        if done or isinstance(news, Halted | Failed):
            self._training.discard(job.shares)


class Pool(Protocol):
    """Where jobs are done; see `densekd.experiment.workers.Workers`."""

    @property
    def free(self) -> bool:
        """Whether a job can be started."""

    def start(self, job: Any) -> None:
        """Begin a job."""

    def news(self, seconds: float) -> Iterator[tuple[Any, News]]:
        """What there is to tell, waiting for it no longer than ``seconds``."""

    def stop(self) -> None:
        """Ask all jobs to save and leave."""


class Overseer:
    """Whom a sweep reports to; this one takes no notice."""

    def began(self, job: Job) -> None:
        """A job is being done."""

    def heard(self, job: Job, news: News) -> None:
        """There is news of a job."""

    def stop(self) -> bool:
        """Asked several times a second: whether all jobs should save and leave."""
        return False


def carry_out(ledger: Ledger, pool: Pool, overseer: Overseer) -> bool:
    """Do what is left of a sweep, and write down what became of it.

    Returns:
        Whether it went to its end, rather than being asked to stop.
    """
    order, stopping = Order(ledger.unfinished()), False
    while order.running or (order.waiting and not stopping):
        if not stopping and overseer.stop():
            stopping = True
            pool.stop()
        while not stopping and pool.free and (job := order.next()):
            ledger.set(job, "running")
            overseer.began(job)
            pool.start(job)
        for job, news in pool.news(0.2):
            order.note(job, news)
            _note(ledger, job, news, stopping)
            overseer.heard(job, news)
    ledger.write()
    return not stopping


def _note(ledger: Ledger, job: Job, news: News, stopping: bool) -> None:
    if isinstance(news, Done):
        ledger.set(job, "finished")
    elif isinstance(news, Halted) and stopping:
        ledger.set(job, "waiting")
    elif isinstance(news, Halted):
        ledger.set(job, "failed", "its process was asked to stop, and saved where it was.")
    elif isinstance(news, Failed):
        if news.trace:
            write_atomically(
                ledger.sweep.folder / "failures" / f"{job.folder.name}.txt", news.trace
            )
        ledger.set(job, "failed", news.reason)
