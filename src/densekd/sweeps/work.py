"""What a sweep's worker runs, and how it reports its progress."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from densekd.analysis.flatness import measure_flatness, measured_flatness
from densekd.checks import check_choice
from densekd.compression.compress import compress
from densekd.compression.config import CompressionConfig, resolve_compression
from densekd.config.file_checksums import file_checksum, has_other_files
from densekd.config.schema import Config, resolve
from densekd.data.decode import available_processors
from densekd.data.scenario import Task
from densekd.jobs.estimate import Estimate
from densekd.jobs.events import JobChannel, JobProgress, WorkerPool
from densekd.jobs.in_process import InProcessPool
from densekd.jobs.local import LocalPool, threads_each
from densekd.parts import display_name
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.runs.run import run_config
from densekd.runs.stored import read_result
from densekd.sweeps.jobs import SweepJob
from densekd.sweeps.ray import RayPool
from densekd.training.callbacks import TrainingProgress, stoppable

SweepEngine = Literal["local", "ray"]


def work(job: SweepJob, channel: JobChannel) -> None:
    """Run a job, or what is left of it."""
    if job.kind == "compression":
        compression = resolve_compression(job.tree)
        compress(compression, job.folder.parent, JobReporter(compression, channel))
        return
    config = resolve(job.tree)
    reporter = JobReporter(config, channel)
    run_config(config, job.folder.parent, reporter)
    if job.flatness:
        # Trusted, because the user named the code when starting the sweep.
        on_progress = stoppable(reporter.measuring, reporter)
        measure_flatness(job.folder, on_progress=on_progress, trust_code=True)


def start_pool(
    workers: int | None = None,
    engine: SweepEngine = "local",
    address: str | None = None,
    *,
    python_value: str | None = None,
) -> WorkerPool:
    """Make the pool that computes runs: processes on this machine, or a Ray cluster.

    ``python_value`` names a value of this process; runs with it are done here, one at a time.
    """
    check_choice("engine", engine, get_args(SweepEngine))
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}; leave it out for the usual.")
    if python_value is not None:
        if engine == "ray" or (workers or 1) > 1:
            raise ValueError(
                f"{display_name(python_value, 'value')} is in this Python process only, where a "
                "sweep does one run at a time; leave workers and engine out, or put it into a file "
                "and name it as FILE.py:NAME."
            )
        return InProcessPool(work)
    if address is not None and engine != "ray":
        raise ValueError("--address names a Ray cluster; add --engine ray.")
    # Half, because a run gains from a second thread, and each run holds its data in memory.
    usual = max(1, available_processors() // 2)
    if engine == "ray":
        return RayPool(work, address, workers, threads_each(usual))
    count = workers or usual
    return LocalPool(work, count, threads_each(count), ["torch.utils.tensorboard"])


def make_finished() -> Callable[[SweepJob], bool]:
    """Make a function that tells whether a job has all its results, and none of its files changed.

    It reads a file that several jobs share only once.
    """
    checksum = functools.cache(file_checksum)

    def finished(job: SweepJob) -> bool:
        if read_result(job.folder) is None or has_other_files(job.folder, checksum):
            return False
        return not job.flatness or measured_flatness(job.folder) is not None

    return finished


class JobReporter(RunObserver):
    """Reports a run's progress to the process that started the job."""

    def __init__(self, config: Config | CompressionConfig, channel: JobChannel) -> None:
        self.config, self.channel = config, channel
        self.tasks: Sequence[Task] = ()
        self.loads = False
        self.scores: list[float] = []
        self.estimate = Estimate([])

    def loading(self, done: int, total: int) -> None:
        """Report only once that data is being read: there may be a million images."""
        if not self.loads:
            self.loads = True
            self.channel.send(JobProgress("reading the data"))

    def started(self, folder: Path, tasks: Sequence[Task], done: int) -> None:
        """Report that the run begins, and how many tasks earlier calls learned."""
        self.tasks = tasks
        self.estimate = Estimate(self.config.workload(tasks))
        self._send("begins", done, base_done=done > 0)

    def resumed(self, records: Sequence[StepRecord]) -> None:
        """Report the accuracies of tasks that earlier calls learned."""
        self._score(records)
        self._send("begins", len(records), base_done=True, scored=True)

    def training(self, number: int, classes: Sequence[str]) -> None:
        """Report which task begins."""
        self._send(self._task(number), number, base_done=number > 0)

    def shared_base(self, waiting: bool) -> None:
        """Report that another process trains the base."""
        if waiting:
            self.channel.send(JobProgress("waiting for its base"))

    def report(self, report: TrainingProgress) -> None:
        """Report how far training is."""
        left = self.estimate.left(report)
        doing = f"{self._task(report.task)}, epoch {report.epoch + 1}/{report.epochs}"
        seconds = None if left is None else left.run
        share = self.estimate.share(report)
        self.channel.send(JobProgress(doing, share, seconds, base_done=report.task > 0))

    def evaluated(self, record: StepRecord) -> None:
        """Report that a task is learned; after the first, other jobs can use the base."""
        self._score([record])
        self._send(self._task(record.number), record.number + 1, base_done=True, scored=True)

    def measuring(self, done: int, total: int) -> None:
        """Report that the run is over and its flatness is measured."""
        self.channel.send(JobProgress("flatness", 1.0, base_done=True))

    def stop(self) -> bool:
        """Whether to save and stop."""
        return self.channel.stop()

    def _score(self, records: Sequence[StepRecord]) -> None:
        self.scores += [x.validation.accuracy for x in records if x.validation is not None]

    def _send(self, doing: str, tasks: int, *, base_done: bool, scored: bool = False) -> None:
        share, scores = self.estimate.share_before(tasks), tuple(self.scores) if scored else ()
        self.channel.send(JobProgress(doing, share, base_done=base_done, scores=scores))

    def _task(self, number: int) -> str:
        return f"task {number + 1}/{len(self.tasks)}"
