"""What a job reports while it runs, and how it ends."""

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from densekd.parts import OwnPartError
from densekd.training.callbacks import Stopped, forward_warnings

_RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class JobProgress:
    """How far a job is."""

    doing: str  # in words
    share: float | None = 0.0  # how much of the job is done, from 0 to 1; None if unknown
    left: float | None = None  # estimated seconds until it ends
    base_done: bool = False  # whether the part that other jobs wait for, such as a base, is done
    scores: tuple[float, ...] = ()  # validation accuracies after each task, if some are new


@dataclass(frozen=True)
class JobWarning:
    """A warning logged by a job that goes on."""

    text: str


@dataclass(frozen=True)
class JobDone:
    """A job finished; ``result`` is what its function returned."""

    result: Any = None


@dataclass(frozen=True)
class JobStopped:
    """A job saved its state and stopped because it was asked to."""


@dataclass(frozen=True)
class JobFailed:
    """A job failed."""

    reason: str  # one sentence for the user
    trace: str = ""  # the traceback of an unexpected error, or of one in custom code


JobEnd = JobDone | JobStopped | JobFailed
JobEvent = JobProgress | JobWarning | JobEnd


class JobChannel(Protocol):
    """Connects a running job with the process that started it."""

    def send(self, event: JobEvent) -> None:
        """Report an event."""

    def stop(self) -> bool:
        """Whether the job should save its state and stop."""


Work = Callable[[Any, JobChannel], Any]


class WorkerPool(Protocol):
    """Where jobs run: in processes of this machine, on a Ray cluster, or in a thread."""

    @property
    def free(self) -> bool:
        """Whether another job can be started."""

    def start(self, job: Any) -> object:
        """Start a job, only while `free`."""

    def events(self, seconds: float) -> Iterator[tuple[Any, JobEvent]]:
        """Give new events of jobs, waiting at most ``seconds``."""

    def stop(self) -> None:
        """Ask all jobs to save their state and stop."""

    def stop_job(self, job: Any) -> None:
        """Ask one job to save its state and stop."""

    def close(self) -> None:
        """End all workers."""


class Busy(ValueError):
    """Another process is working in the same folder."""


def run_job(work: Work, job: Any, channel: JobChannel) -> JobEnd:
    """Run a job in this process and return how it ended; raises nothing.

    While another process holds the job's folder, wait: it may finish the job, or be killed.
    """
    with forward_warnings(lambda text: channel.send(JobWarning(text))):
        while not channel.stop():
            try:
                return JobDone(work(job, channel))
            except Stopped:
                return JobStopped()
            except Busy:
                channel.send(JobProgress("waiting for another process that works on it"))
            except OwnPartError as error:
                return JobFailed(str(error), traceback.format_exc())
            except (ValueError, OSError) as error:
                return JobFailed(str(error))
            except Exception as error:
                return JobFailed(f"{type(error).__name__}: {error}", traceback.format_exc())
            time.sleep(_RETRY_SECONDS)
    return JobStopped()
