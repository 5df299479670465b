"""An update in a separate process: the page stays responsive, also if the update crashes."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from densekd.jobs.estimate import CountEstimate, Estimate, PhaseWork
from densekd.jobs.events import (
    JobChannel,
    JobDone,
    JobEvent,
    JobFailed,
    JobProgress,
    JobStopped,
    JobWarning,
)
from densekd.jobs.local import BackgroundJob
from densekd.model.options import TeachOptions
from densekd.model.request import Plan, TeachObserver
from densekd.model.store import Update
from densekd.model.teach import teach_model
from densekd.training.callbacks import TrainingProgress

logger = logging.getLogger(__name__)


class UpdateInput(NamedTuple):
    """What `densekd.model.teach.teach_model` takes."""

    folder: Path
    source: Path
    options: TeachOptions


class UpdateJob(BackgroundJob):
    """An update that runs in the background; ``at_end`` is called however it ends."""

    def __init__(self, task: UpdateInput, at_end: Callable[["UpdateJob"], None]) -> None:
        self.progress = JobProgress("Starting", None)
        self.warnings: list[str] = []
        self.update: Update | None = None
        self.failure: str | None = None
        self.stopped = False
        self._source, self._at_end, self._stopping = task.source, at_end, False
        super().__init__(run_update, task, self._receive)

    def stop(self) -> None:
        """Ask the update to save its progress and stop."""
        self._stopping = True
        self.progress = JobProgress("Stopping after this batch", self.progress.share)
        super().stop()

    def _receive(self, event: JobEvent) -> None:
        match event:
            case JobProgress():
                if not self._stopping:
                    self.progress = event
                return
            case JobWarning():
                self.warnings.append(event.text.replace(f"{self._source}/", ""))
                return
            case JobDone():
                self.update = event.result
            case JobStopped():
                self.stopped = True
            case JobFailed():
                # The user of the page doesn't know the folder that the images were put in.
                reason = event.reason.replace(str(self._source), "what was dropped")
                self.failure = f"The update failed: {reason} The model is unchanged."
                if event.trace:
                    logger.error(event.trace)
        self._at_end(self)


def run_update(task: UpdateInput, channel: JobChannel) -> Update:
    """Teach in this process, reporting to ``channel``."""
    return teach_model(*task, UpdateReporter(channel))


class UpdateReporter(TeachObserver):
    """Turns what `densekd.model.teach.teach_model` reports into job events."""

    def __init__(self, channel: JobChannel) -> None:
        self.channel = channel
        self.phases: tuple[tuple[str, int], ...] = ()
        self.estimate, self.reading_estimate = Estimate([]), CountEstimate()

    def reading(self, done: int, total: int) -> None:
        """Report every 8th photo, and the time left."""
        left = self.reading_estimate.left(done, total)
        if done % 8 == 0 or done == total:
            doing = f"Reading photo {done:,} of {total:,}"
            self.channel.send(JobProgress(doing, done / total, left))

    def planned(self, plan: Plan) -> None:
        """Prepare to estimate the time left."""
        self.phases = plan.phases
        phases = [PhaseWork(plan.task, *phase) for phase in plan.phases]
        self.estimate = Estimate(phases, self.estimate.clock)

    def doing(self, what: str) -> None:
        """Report an activity of unknown length."""
        self.channel.send(JobProgress(what.capitalize(), None))

    def report(self, report: TrainingProgress) -> None:
        """Report the epoch and the time left."""
        names, counts = zip(*self.phases, strict=True)
        epoch = sum(counts[: names.index(report.phase)]) + report.epoch + 1
        left = self.estimate.left(report)
        self.channel.send(
            JobProgress(
                f"Learning, epoch {epoch} of {sum(counts)}",
                self.estimate.share(report),
                None if left is None else left.run,
            )
        )

    def stop(self) -> bool:
        """Whether the page asked to stop."""
        return self.channel.stop()
