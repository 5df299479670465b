"""Worker processes of this machine."""

import atexit
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from typing import Any, get_args

import torch

from densekd.data.decode import available_processors
from densekd.jobs.events import JobChannel, JobEnd, JobEvent, JobFailed, JobStopped, Work, run_job


class LocalPool:
    """Runs jobs in worker processes; a worker that dies fails only its own job.

    Args:
        work: runs a job; a module-level function, because workers import it by name.
        count: the number of jobs that run at a time.
        threads: the number of threads of each worker; torch's default unless given.
        modules: import these before workers start, besides the module of ``work``.
    """

    def __init__(
        self, work: Work, count: int, threads: int | None = None, modules: Sequence[str] = ()
    ) -> None:
        self.work, self.count, self.threads = work, count, threads
        self._context = _context(work.__module__, *modules)
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._gone: list[_Worker] = []
        self._stopping = False

    @property
    def free(self) -> bool:
        """Whether another job can be started."""
        return len(self._busy) < self.count and not self._stopping

    def start(self, job: Any) -> int:
        """Start a job, only while `free`; returns the id of its process."""
        while self._idle and not self._idle[-1].process.is_alive():  # killed after its last job
            self._gone.append(self._idle.pop())
        worker = self._idle.pop() if self._idle else self._new_worker()
        worker.job = job
        worker.send(job)
        self._busy.append(worker)
        return int(worker.process.pid)

    def events(self, seconds: float) -> Iterator[tuple[Any, JobEvent]]:
        """Give the next event of each job that has one, waiting at most ``seconds``."""
        ready = set(wait([worker.pipe for worker in self._busy], seconds))
        for worker in [worker for worker in self._busy if worker.pipe in ready]:
            try:
                event = worker.pipe.recv()
            except (EOFError, OSError):
                event = _cause(worker.process)
            if isinstance(event, get_args(JobEnd)):
                self._busy.remove(worker)
                # A worker leaves after its job was stopped.
                gone = isinstance(event, JobStopped) or not worker.process.is_alive()
                gone = gone or worker.leaving  # it may have finished before it was asked to stop
                (self._gone if gone else self._idle).append(worker)
            yield worker.job, event

    def stop(self) -> None:
        """Ask all jobs to save their state and stop."""
        self._stopping = True
        for worker in self._busy:
            worker.send(None)

    def stop_job(self, job: Any) -> None:
        """Ask one job to save its state and stop."""
        for worker in self._busy:
            if worker.job is job:
                worker.send(None)
                worker.leaving = True

    def kill(self) -> None:
        """Kill the workers that run a job."""
        for worker in self._busy:
            worker.process.kill()

    def close(self) -> None:
        """End all workers; kill those that still run a job."""
        self.kill()
        for worker in self._idle:
            worker.send(None)
        for worker in (*self._busy, *self._idle, *self._gone):
            worker.process.join()
            worker.pipe.close()
        self._busy, self._idle, self._gone = [], [], []

    def _new_worker(self) -> "_Worker":
        pipe, theirs = self._context.Pipe()
        used = {worker.place for worker in self._busy}
        place = next(n for n in range(self.count) if n not in used)
        process = self._context.Process(
            target=_serve, args=(theirs, self.work, self.threads, _device(place))
        )
        process.start()
        theirs.close()  # so that the pipe closes when the worker ends
        return _Worker(process, pipe, place)


class BackgroundJob:
    """One job in a process of its own, which is killed when this process exits.

    It calls ``on_event`` with each event, in a thread of its own; the last one is a `JobEnd`.
    """

    def __init__(self, work: Work, job: Any, on_event: Callable[[JobEvent], None]) -> None:
        self._pool, self._on_event = LocalPool(work, 1), on_event
        self.pid = self._pool.start(job)
        atexit.register(self._pool.kill)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads: nobody would listen to the worker
            atexit.unregister(self._pool.kill)
            self._pool.close()
            raise

    @property
    def running(self) -> bool:
        """Whether the job still runs, or its last event is being handled."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask the job to save its state and stop."""
        self._pool.stop()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the job has ended, at most ``seconds``."""
        self._thread.join(seconds)

    def _listen(self) -> None:
        while True:
            for _, event in self._pool.events(1.0):
                if isinstance(event, get_args(JobEnd)):
                    self._pool.close()
                    atexit.unregister(self._pool.kill)
                    self._on_event(event)
                    return
                self._on_event(event)


def preload(module: str) -> None:
    """Import a module in the background, so that workers that need it start at once."""
    _context(module)
    ensure_running()


def threads_each(workers: int) -> int:
    """The threads for each of so many workers; ``OMP_NUM_THREADS`` takes precedence."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    given = int(asked) if asked.isdigit() else 0
    return given or max(1, available_processors() // workers)


@dataclass
class _Worker:
    process: Any  # its type is private to the context
    pipe: "Connection[Any, Any]"
    place: int
    job: Any = None
    leaving: bool = False  # whether it was asked to stop

    def send(self, job: Any) -> None:
        with suppress(OSError):  # the worker is gone, which `events` will notice
            self.pipe.send(job)


class _Pipe(JobChannel):
    """A worker's end of the pipe. None instead of a job, or a closed pipe, means stop."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self.pipe = pipe
        self.stopped = False

    def send(self, event: JobEvent) -> None:
        try:
            self.pipe.send(event)
        except OSError:
            self.stopped = True

    def stop(self) -> bool:
        if not self.stopped and self.pipe.poll():
            self.stopped = self.next_job() is None
        return self.stopped

    def next_job(self) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def terminate(self, *_: object) -> None:
        """Handle SIGTERM."""
        self.stopped = True


def _context(*modules: str) -> ForkServerContext:
    # Workers are forked from a server process that has only imported the modules: it has no
    # threads or open files of this process, and workers start quickly.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *modules])
    return context


def _serve(
    pipe: "Connection[Any, Any]", work: Work, threads: int | None, device: str | None
) -> None:
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    if threads is not None:
        torch.set_num_threads(threads)
    # Ctrl-C reaches all processes of a terminal; the parent decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = _Pipe(pipe)
    while not channel.stopped and (job := channel.next_job()) is not None:
        # SIGTERM stops a job, but ends an idle worker: the next job needs another one.
        signal.signal(signal.SIGTERM, channel.terminate)
        channel.send(run_job(work, job, channel))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _device(place: int) -> str | None:
    """The GPU of a worker, if there are several."""
    count = torch.cuda.device_count()
    if count < 2:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names: Sequence[str] = visible.split(",") if visible else [str(n) for n in range(count)]
    return names[place % count]


def _cause(process: Any) -> JobFailed:
    """Why a worker ended without reporting it."""
    process.join()
    code = process.exitcode
    if code == -signal.SIGKILL:
        return JobFailed("its process was killed; perhaps the memory was full.")
    if code < 0:
        return JobFailed(f"its process was ended by {signal.Signals(-code).name}.")
    return JobFailed(f"its process ended with code {code}.")
