"""Run jobs on a Ray cluster, whose machines share the folders of runs and data."""

import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from densekd.checks import missing_extra
from densekd.config.settings_tree import given
from densekd.jobs.events import JobChannel, JobEnd, JobEvent, JobFailed, Work, run_job
from densekd.sweeps.jobs import SweepJob

# After this many retries, the job itself is probably what kills its worker.
_RETRIES = 3
# A cluster's address, with the protocol of a remote client or without one.
_ADDRESS = re.compile(r"(?:ray://)?\[?([^/\]]+)\]?:(\d{1,5})")
_SECONDS_TO_CONNECT = 10
# The environment variables that a run reads; its worker gets the same values.
_VARIABLES = (
    *("DENSEKD_DATA", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"),
    *("WANDB_MODE", "WANDB_PROJECT"),
)


class RayPool:
    """Runs jobs as Ray tasks; a job whose worker dies resumes on another from its checkpoint.

    Args:
        work: runs a job; a module-level function that all machines have installed.
        address: of the cluster, or ``auto`` for the one this machine belongs to; None starts a
            cluster on this machine, which lasts until `close`.
        workers: the most jobs at a time; by default as many as the processors suffice for.
        threads: the threads of each job.
    """

    def __init__(self, work: Work, address: str | None, workers: int | None, threads: int) -> None:
        self.work, self.workers, self.threads = work, workers, threads
        self._ray = _ray()
        _check_address(address)
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
            raise _no_cluster(address or "this machine", error) from error
        # Pinned to this machine: jobs stop without the mailbox, and any other machine can be lost.
        here = self._ray.get_runtime_context().get_node_id()
        stay = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        mailbox = self._ray.remote(num_cpus=0, scheduling_strategy=stay)(_Mailbox)
        self._mailbox = mailbox.remote()
        self._jobs: dict[Any, SweepJob] = {}  # by the reference to their result

    @property
    def free(self) -> bool:
        """Whether another job can be started."""
        # Asked each time, because a cluster can grow.
        found = self._ray.cluster_resources().get("CPU", 0) // self.threads
        return len(self._jobs) < max(1, self.workers or found)

    def start(self, job: SweepJob) -> None:
        """Start a job."""
        gpus = self._ray.cluster_resources().get("GPU", 0)
        wanted = given(job.tree, "engine", "accelerator") != "cpu"
        task = self._ray.remote(_task).options(
            name=f"densekd {job.folder.name}",
            num_cpus=self.threads,
            num_gpus=1 if gpus and wanted else 0,
            max_retries=_RETRIES,
        )
        variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        channel, place = (self._mailbox, str(job.folder)), (Path.cwd(), variables)
        self._jobs[task.remote(self.work, job, channel, place, self.threads)] = job

    def events(self, seconds: float) -> Iterator[tuple[SweepJob, JobEvent]]:
        """Give new events, waiting at most ``seconds`` for a job to end."""
        if not self._jobs:
            return
        ended, _ = self._ray.wait(list(self._jobs), timeout=seconds)
        by_key = {str(job.folder): job for job in self._jobs.values()}
        for key, event in self._ray.get(self._mailbox.take.remote()):
            if key in by_key:
                yield by_key[key], event
        for result in ended:
            yield self._jobs.pop(result), self._outcome(result)

    def stop(self) -> None:
        """Ask all jobs to save their state and stop."""
        self._mailbox.ask_to_stop.remote()

    def stop_job(self, job: SweepJob) -> None:
        """Ask one job to save its state and stop."""
        self._mailbox.ask_to_stop.remote(str(job.folder))

    def close(self) -> None:
        """Leave the cluster, which kills jobs that still run."""
        self._ray.shutdown()

    def _outcome(self, result: Any) -> JobEnd:
        try:
            outcome: JobEnd = self._ray.get(result)
        except self._ray.exceptions.WorkerCrashedError:
            return JobFailed(
                f"its worker was lost {_RETRIES + 1} times; perhaps the memory is full."
            )
        except self._ray.exceptions.RayError as error:
            return JobFailed(" ".join(str(error).split()))
        return outcome


class _Mailbox:
    """An actor that collects the events of jobs, and tells jobs when to stop."""

    def __init__(self) -> None:
        self._events: list[tuple[str, JobEvent]] = []
        self._stopping: set[str | None] = set()

    def send(self, key: str, event: JobEvent) -> None:
        self._events.append((key, event))

    def take(self) -> list[tuple[str, JobEvent]]:
        events, self._events = self._events, []
        return events

    def ask_to_stop(self, key: str | None = None) -> None:
        self._stopping.add(key)  # None means all

    def stopping(self, key: str) -> bool:
        return not self._stopping.isdisjoint((key, None))


class _MailboxChannel(JobChannel):
    def __init__(self, mailbox: Any, key: str) -> None:
        self.mailbox, self.key = mailbox, key
        self._asked, self._stopped = 0.0, False

    def send(self, event: JobEvent) -> None:
        self.mailbox.send.remote(self.key, event)

    def stop(self) -> bool:
        # Asking over a network takes longer than training on a batch.
        if time.monotonic() - self._asked >= 1 and not self._stopped:
            ray = _ray()
            try:
                self._stopped = ray.get(self.mailbox.stopping.remote(self.key))
            except ray.exceptions.RayError:  # the process that started the job is gone
                self._stopped = True
            self._asked = time.monotonic()
        return self._stopped


def _check_address(address: str | None) -> None:
    """Raise ValueError if nothing answers at an address; Ray itself would try for minutes."""
    if match := _ADDRESS.fullmatch(address or ""):
        try:
            socket.create_connection((match[1], int(match[2])), _SECONDS_TO_CONNECT).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(match[0], error) from error


def _no_cluster(place: str, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())
    return ValueError(f"There is no Ray cluster at {place}: {reason}")


def _task(
    work: Work,
    job: Any,
    channel: tuple[Any, str],
    place: tuple[Path, Mapping[str, str]],
    threads: int,
) -> JobEnd:
    try:
        _enter(*place)
    except OSError as error:
        return JobFailed(
            f"A worker doesn't find {place[0]} ({error}); give the command in a folder that all "
            "machines of the cluster share."
        )
    torch.set_num_threads(threads)
    return run_job(work, job, _MailboxChannel(*channel))


def _enter(folder: Path, variables: Mapping[str, str]) -> None:
    """Use the command's working folder and variables, so that paths mean the same everywhere."""
    os.environ.update(variables)
    os.chdir(folder)


def _ray() -> Any:
    # Ray reads these when imported: send no usage statistics, don't warn about missing GPUs.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise missing_extra("The engine ray", "ray", ", or leave --engine out") from error
    return ray
