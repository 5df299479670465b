"""Run jobs in a thread, for values that can't be sent to another process."""

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args

from densekd.jobs.events import JobChannel, JobEnd, JobEvent, JobFailed, Work, run_job


class InProcessPool:
    """Runs one job at a time in a thread."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._events: queue.SimpleQueue[tuple[Any, JobEvent]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._channel = _Channel(self._events, None)
        self._stopping = False

    @property
    def free(self) -> bool:
        """Whether another job can be started."""
        return self._thread is None and not self._stopping

    def start(self, job: Any) -> None:
        """Start a job, only while `free`."""
        self._channel = _Channel(self._events, job)
        self._thread = threading.Thread(target=self._run, args=(self._channel,), daemon=True)
        self._thread.start()

    def events(self, seconds: float) -> Iterator[tuple[Any, JobEvent]]:
        """Give the events that there are, waiting at most ``seconds`` for the first."""
        found: list[tuple[Any, JobEvent]] = []
        with suppress(queue.Empty):
            found.append(self._events.get(timeout=seconds))
            while True:
                found.append(self._events.get_nowait())
        for job, event in found:
            if isinstance(event, get_args(JobEnd)):
                self._join()
            yield job, event

    def stop(self) -> None:
        """Ask the job to save its state and stop."""
        self._stopping = self._channel.stopped = True

    def stop_job(self, job: Any) -> None:
        """Ask the job to save its state and stop, if it is this one."""
        if self._channel.job is job:
            self._channel.stopped = True

    def close(self) -> None:
        """Wait until the job has stopped, which a thread can't be made to."""
        self.stop()
        self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, channel: "_Channel") -> None:
        end: JobEnd = JobFailed("its code ended the thread, as sys.exit() does.")
        try:
            end = run_job(self.work, channel.job, channel)
        finally:
            channel.send(end)  # without it, the pool's user would wait for ever


class _Channel(JobChannel):
    def __init__(self, events: "queue.SimpleQueue[tuple[Any, JobEvent]]", job: Any) -> None:
        self.events, self.job, self.stopped = events, job, False

    def send(self, event: JobEvent) -> None:
        self.events.put((self.job, event))

    def stop(self) -> bool:
        return self.stopped
