"""What a worker of a sweep does, wherever it is, and how it tells of it."""

from collections.abc import Sequence
from pathlib import Path

from densekd.analysis.flatness import measure_flatness
from densekd.compression.compress import compress
from densekd.compression.config import CompressionConfig, resolve_compression
from densekd.config.schema import Config, resolve
from densekd.data.scenario import Task
from densekd.runs.record import StepRecord
from densekd.runs.run import RunObserver, read_result, run
from densekd.sweeps.jobs import SweepJob
from densekd.sweeps.local import JobChannel, JobProgress
from densekd.training.callbacks import Stopped, TrainingProgress
from densekd.training.estimate import Estimate


def work(job: SweepJob, channel: JobChannel) -> None:
    """Do a job, or what is left of it."""
    if job.kind == "compression":
        small = resolve_compression(job.tree)
        compress(small, job.out, Telling(small, channel))
        return
    config = resolve(job.tree)
    run(config, job.out, Telling(config, channel))
    if "flatness" in job.figures:
        _flatness(job.folder, channel)


def finished(job: SweepJob) -> bool:
    """Whether nothing of a job is left to do."""
    flat = "flatness" not in job.figures or (job.folder / "flatness.json").exists()
    return flat and read_result(job.folder) is not None


class Telling(RunObserver):
    """Passes on how far a run is."""

    def __init__(self, config: Config | CompressionConfig, channel: JobChannel) -> None:
        self.config, self.channel = config, channel
        self.tasks: Sequence[Task] = ()
        self.reading = False
        self.estimate = Estimate([])

    def loading(self, done: int, total: int) -> None:
        """Tell that data are read, once: there may be a million images."""
        if not self.reading:
            self.reading = True
            self.channel.tell(JobProgress("reading the data"))

    def started(self, folder: Path, tasks: Sequence[Task], done: int) -> None:
        """Tell what is done already."""
        self.tasks = tasks
        self.estimate = Estimate(self.config.workload(tasks))
        self.channel.tell(JobProgress("begins", self._share(done), shared=done > 0))

    def training(self, number: int, classes: Sequence[str]) -> None:
        """Tell which task begins."""
        self.channel.tell(JobProgress(self._task(number), self._share(number), shared=number > 0))

    def shared_base(self, waiting: bool) -> None:
        """Tell that another process trains the base."""
        if waiting:
            self.channel.tell(JobProgress("waiting for its base"))

    def report(self, report: TrainingProgress) -> None:
        """Tell how far training is."""
        left = self.estimate.left(report)
        doing = f"{self._task(report.task)}, epoch {report.epoch + 1}/{report.epochs}"
        within = (report.epoch + report.batch / report.batches) / report.epochs
        share = self._share(report.task, report.phase, within)
        seconds = None if left is None else left.run
        self.channel.tell(JobProgress(doing, share, seconds, shared=report.task > 0))

    def evaluated(self, record: StepRecord) -> None:
        """Tell that a task is learned, by which the base is there for others."""
        done = record.number + 1
        self.channel.tell(JobProgress(self._task(record.number), self._share(done), shared=True))

    def stop(self) -> bool:
        """Whether to save and leave."""
        return self.channel.stop()

    def _task(self, number: int) -> str:
        return f"task {number + 1}/{len(self.tasks)}"

    def _share(self, task: int, phase: str | None = None, within: float = 0.0) -> float:
        """Of all images that the run goes through, those before a phase and ``within`` it."""
        plan = self.estimate.plan
        here = [n for n, each in enumerate(plan) if each.task == task and phase in (None, each[1])]
        if not here:  # after the last task
            return 1.0
        images = [each.images for each in plan]
        done = sum(images[: here[0]]) + (within * images[here[0]] if phase else 0.0)
        return done / sum(images)


def _flatness(folder: Path, channel: JobChannel) -> None:
    def on_progress(done: int, total: int) -> None:
        if channel.stop():
            raise Stopped
        channel.tell(JobProgress("flatness", 1.0, shared=True))

    measure_flatness(folder, on_progress=on_progress)
