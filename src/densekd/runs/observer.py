"""What a run reports to those who watch it."""

from collections.abc import Sequence
from pathlib import Path

from densekd.data.scenario import Task
from densekd.runs.record import StepRecord
from densekd.training.callbacks import Callback, TrainingProgress


class RunObserver(Callback):
    """Receives the events of a run. This one ignores them; override what you need."""

    def loading(self, done: int, total: int) -> None:
        """Data is being read: ``done`` of ``total`` images or bytes."""

    def started(self, folder: Path, tasks: Sequence[Task], done: int) -> None:
        """A run starts in ``folder``, or resumes after ``done`` tasks."""

    def resumed(self, records: Sequence[StepRecord]) -> None:
        """The run goes on after these tasks, which were learned in an earlier call."""

    def training(self, number: int, classes: Sequence[str]) -> None:
        """Training on a task starts."""

    def shared_base(self, waiting: bool) -> None:
        """Another run has trained the base, or, if ``waiting``, is training it now."""

    def evaluated(self, record: StepRecord) -> None:
        """A task was learned and tested."""


class RunObservers(RunObserver):
    """Passes training progress and evaluations on to an observer and to some writers."""

    def __init__(self, observer: RunObserver, *writers: RunObserver) -> None:
        self.observer, self.writers = observer, writers

    def report(self, report: TrainingProgress) -> None:
        """Pass on training progress."""
        for each in (self.observer, *self.writers):
            each.report(report)

    def evaluated(self, record: StepRecord) -> None:
        """Pass on the record of a task."""
        for each in (self.observer, *self.writers):
            each.evaluated(record)

    def stop(self) -> bool:
        """Whether the observer wants the run to stop."""
        return self.observer.stop()
