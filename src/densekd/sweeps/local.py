"""Processes of this machine that do jobs one after another, and what they tell of them."""

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch

from densekd.runs.locks import Busy
from densekd.training.callbacks import Stopped, warnings_to


@dataclass(frozen=True)
class JobProgress:
    """How far a job is.

    Args:
        doing: in words.
        share: of the whole job, from 0 to 1.
        left: seconds until its end, if that can be told.
        shared: what it has in common with other jobs is done, so that they can begin.
    """

    doing: str
    share: float = 0.0
    left: float | None = None
    shared: bool = False


@dataclass(frozen=True)
class JobWarning:
    """A job goes on, but someone should know this."""

    text: str


@dataclass(frozen=True)
class JobDone:
    """A job is finished."""


@dataclass(frozen=True)
class JobStopped:
    """A job was asked to stop, and saved where it was."""


@dataclass(frozen=True)
class JobFailed:
    """A job can't go on.

    Args:
        reason: a sentence.
        trace: where it happened, for what nobody has foreseen.
    """

    reason: str
    trace: str = ""


JobEvent = JobProgress | JobWarning | JobDone | JobStopped | JobFailed


class JobChannel(Protocol):
    """What connects a job with whoever gave it."""

    def tell(self, news: JobEvent) -> None:
        """Pass on news."""

    def stop(self) -> bool:
        """Whether to save and leave."""


Work = Callable[[Any, JobChannel], None]


def run_job(work: Work, job: Any, channel: JobChannel) -> JobDone | JobStopped | JobFailed:
    """Do a job where it is to be done; whatever happens there is told."""
    with warnings_to(lambda words: channel.tell(JobWarning(words))):
        while not channel.stop():
            try:
                work(job, channel)
                return JobDone()
            except Stopped:
                return JobStopped()
            except Busy:
                # Whoever works on it may finish it, or be killed.
                channel.tell(JobProgress("waiting for another process that works on it"))
            except (ValueError, OSError) as error:
                return JobFailed(str(error))
            except Exception as error:
                return JobFailed(f"{type(error).__name__}: {error}", traceback.format_exc())
            time.sleep(0.5)
    return JobStopped()


class LocalPool:
    """Processes of this machine; one that dies takes with it no more than its job.

    Args:
        work: does a job; a function of a module, for it is found by its name there.
        count: how many jobs go on at a time.
        threads: that each computes with.
    """

    def __init__(self, work: Work, count: int, threads: int) -> None:
        self.work, self.count, self.threads = work, count, threads
        # Forked from a process that has only imported what is needed, so without open files or
        # threads of ours, and soon ready.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__, work.__module__])
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._gone: list[_Worker] = []
        self._stopping = False

    @property
    def free(self) -> bool:
        """Whether a job can be started."""
        return len(self._busy) < self.count and not self._stopping

    def start(self, job: Any) -> None:
        """Begin a job."""
        worker = self._idle.pop() if self._idle else self._hire()
        worker.job = job
        worker.send(job)
        self._busy.append(worker)

    def news(self, seconds: float) -> Iterator[tuple[Any, JobEvent]]:
        """What there is to tell of each job, waiting for it no longer than ``seconds``."""
        ready = set(wait([worker.pipe for worker in self._busy], seconds))
        for worker in [worker for worker in self._busy if worker.pipe in ready]:
            try:
                news = worker.pipe.recv()
            except (EOFError, OSError):
                news = _cause(worker.process)
            if isinstance(news, JobDone | JobStopped | JobFailed):
                self._busy.remove(worker)
                # One that was asked to stop does no more.
                gone = isinstance(news, JobStopped) or not worker.process.is_alive()
                (self._gone if gone else self._idle).append(worker)
            yield worker.job, news

    def stop(self) -> None:
        """Ask all jobs to save and leave."""
        self._stopping = True
        for worker in self._busy:
            worker.send(None)

    def close(self) -> None:
        """End the processes, at once if they have something to do."""
        for worker in self._busy:
            worker.process.kill()
        for worker in self._idle:
            worker.send(None)
        for worker in (*self._busy, *self._idle, *self._gone):
            worker.process.join()
            worker.pipe.close()

    def _hire(self) -> "_Worker":
        pipe, theirs = self._context.Pipe()
        used = {worker.place for worker in self._busy}
        place = next(n for n in range(self.count) if n not in used)
        process = self._context.Process(
            target=_serve, args=(theirs, self.work, self.threads, _device(place))
        )
        process.start()
        theirs.close()  # so that its end closes the pipe
        return _Worker(process, pipe, place)


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(workers: int) -> int:
    """The threads of each of so many workers; ``OMP_NUM_THREADS`` has the last word."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) else max(1, cores() // workers)


@dataclass
class _Worker:
    process: Any  # of the context, whose type is its own
    pipe: "Connection[Any, Any]"
    place: int
    job: Any = None

    def send(self, job: Any) -> None:
        with suppress(OSError):  # it is gone, which is noticed when there should be news
            self.pipe.send(job)


class _Pipe:
    """The channel of a worker: no job but None, and no one at the other end, mean to stop."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self.pipe = pipe
        self.told = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent asks
        signal.signal(signal.SIGTERM, self._hang_up)

    def tell(self, news: JobEvent) -> None:
        try:
            self.pipe.send(news)
        except OSError:
            self.told = True

    def stop(self) -> bool:
        if not self.told and self.pipe.poll():
            self.told = self.job() is None
        return self.told

    def job(self) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def _hang_up(self, *_: object) -> None:
        self.told = True


def _serve(pipe: "Connection[Any, Any]", work: Work, threads: int, device: str | None) -> None:
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    torch.set_num_threads(threads)
    channel = _Pipe(pipe)
    while not channel.told and (job := channel.job()) is not None:
        channel.tell(run_job(work, job, channel))


def _device(place: int) -> str | None:
    """Which of several GPUs a worker computes on."""
    count = torch.cuda.device_count()
    if count < 2:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names: Sequence[str] = visible.split(",") if visible else [str(n) for n in range(count)]
    return names[place % count]


def _cause(process: Any) -> JobFailed:
    """Why a process has ended without a word."""
    process.join()
    code = process.exitcode
    if code == -signal.SIGKILL:
        return JobFailed("its process was killed; perhaps the memory was full.")
    if code < 0:
        return JobFailed(f"its process was ended by {signal.Signals(-code).name}.")
    return JobFailed(f"its process ended with code {code}.")
