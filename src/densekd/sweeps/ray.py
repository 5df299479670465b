"""Jobs as tasks of a Ray cluster, whose machines have the folders of runs and data in common."""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from densekd.config.settings_tree import given
from densekd.jobs.events import JobChannel, JobDone, JobEvent, JobFailed, JobStopped, Work, run_job
from densekd.sweeps.jobs import SweepJob

# A job that loses its worker so many times more than this may be what kills it.
_RETRIES = 3
# What a run reads from its environment.
_VARIABLES = ("DENSEKD_DATA",)


class RayPool:
    """Ray tasks; one whose worker is lost goes on from its checkpoint on another.

    Args:
        work: does a job; a function of a module, which all machines have installed.
        address: of a cluster, ``auto`` for the one that this machine belongs to; without one,
            this machine is a cluster until `close`.
        workers: how many jobs go on at a time at most; as many as there are processors for,
            unless given.
        threads: that each computes with.
    """

    def __init__(self, work: Work, address: str | None, workers: int | None, threads: int) -> None:
        self.work, self.workers, self.threads = work, workers, threads
        self._ray = _ray()
        mine = {} if workers is None else {"num_cpus": workers * threads}
        where = {"address": address} if address else {"address": "local", **mine}
        try:
            self._ray.init(
                **where,
                include_dashboard=False if not address else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"There is no Ray cluster at {address or 'this machine'}: {reason}"
            ) from error
        self._desk = self._ray.remote(num_cpus=0)(_Desk).remote()
        self._jobs: dict[Any, SweepJob] = {}  # by what Ray calls their result

    @property
    def free(self) -> bool:
        """Whether a job can be started."""
        # Asked each time, for clusters grow.
        found = self._ray.cluster_resources().get("CPU", 0) // self.threads
        return len(self._jobs) < max(1, self.workers or found)

    def start(self, job: SweepJob) -> None:
        """Begin a job."""
        gpus = self._ray.cluster_resources().get("GPU", 0)
        wanted = given(job.tree, "engine", "accelerator") != "cpu"
        task = self._ray.remote(_task).options(
            name=f"densekd {job.folder.name}",
            num_cpus=self.threads,
            num_gpus=1 if gpus and wanted else 0,
            max_retries=_RETRIES,
        )
        place = _Place(Path.cwd(), {v: os.environ[v] for v in _VARIABLES if v in os.environ})
        ticket = str(job.folder)
        self._jobs[task.remote(self.work, job, (self._desk, ticket), place, self.threads)] = job

    def events(self, seconds: float) -> Iterator[tuple[SweepJob, JobEvent]]:
        """What there is to tell of each job, waiting for it no longer than ``seconds``."""
        if not self._jobs:
            return
        ended, _ = self._ray.wait(list(self._jobs), timeout=seconds)
        by_ticket = {str(job.folder): job for job in self._jobs.values()}
        for ticket, event in self._ray.get(self._desk.take.remote()):
            if ticket in by_ticket:
                yield by_ticket[ticket], event
        for result in ended:
            yield self._jobs.pop(result), self._outcome(result)

    def stop(self) -> None:
        """Ask all jobs to save and leave."""
        self._desk.ask_to_stop.remote()

    def close(self) -> None:
        """Leave the cluster, which ends what is still being done."""
        self._ray.shutdown()

    def _outcome(self, result: Any) -> JobDone | JobStopped | JobFailed:
        try:
            outcome: JobDone | JobStopped | JobFailed = self._ray.get(result)
        except self._ray.exceptions.WorkerCrashedError:
            return JobFailed(
                f"its worker was lost {_RETRIES + 1} times; perhaps the memory is full."
            )
        except self._ray.exceptions.RayError as error:
            return JobFailed(" ".join(str(error).split()))
        return outcome


@dataclass(frozen=True)
class _Place:
    """Where the command was given, so that paths mean the same to all workers."""

    folder: Path
    variables: Mapping[str, str]

    def enter(self) -> None:
        os.environ.update(self.variables)
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise ValueError(
                f"A worker doesn't find {self.folder} ({error}); give the command in a folder "
                "that all machines of the cluster have in common."
            ) from None


class _Desk:
    """An actor where jobs leave their event, and ask whether to stop."""

    def __init__(self) -> None:
        self._told: list[tuple[str, JobEvent]] = []
        self._stopping = False

    def send(self, ticket: str, event: JobEvent) -> None:
        self._told.append((ticket, event))

    def take(self) -> list[tuple[str, JobEvent]]:
        told, self._told = self._told, []
        return told

    def ask_to_stop(self) -> None:
        self._stopping = True

    def stopping(self) -> bool:
        return self._stopping


class _ToDesk(JobChannel):
    def __init__(self, desk: Any, ticket: str) -> None:
        self.desk, self.ticket = desk, ticket
        self._asked, self._told = 0.0, False

    def send(self, event: JobEvent) -> None:
        self.desk.send.remote(self.ticket, event)

    def stop(self) -> bool:
        # Across a network it takes longer to ask than to train on a batch.
        if time.monotonic() - self._asked >= 1 and not self._told:
            ray = _ray()
            try:
                self._told = ray.get(self.desk.stopping.remote())
            except ray.exceptions.RayError:  # whoever gave the job is gone
                self._told = True
            self._asked = time.monotonic()
        return self._told


def _task(
    work: Work, job: SweepJob, desk: tuple[Any, str], place: _Place, threads: int
) -> JobDone | JobStopped | JobFailed:
    try:
        place.enter()
    except ValueError as error:
        return JobFailed(str(error))
    torch.set_num_threads(threads)
    return run_job(work, job, _ToDesk(*desk))


def _ray() -> Any:
    # Read when Ray is imported: nothing is sent to anyone, nor said about GPUs that aren't there.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ValueError(
            "The engine ray needs Ray, which isn't here; install it with "
            "`pip install 'densekd[ray]'`, or leave --engine out."
        ) from None
    return ray
