"""What a run reports to those who watch it."""

from collections.abc import Sequence
from pathlib import Path

from densekd.data.scenario import Task
from densekd.runs.record import StepRecord
from densekd.training.callbacks import Callback, TrainingProgress


class RunObserver(Callback):
    """Receives the events of a run. This one ignores them; override what you need.

    Example:
        >>> import densekd
        >>> class Accuracies(densekd.RunObserver):
        ...     def evaluated(self, record):
        ...         print(f"{record.classes_seen} classes: {record.accuracy > 0.1}")
        >>> _ = densekd.run(steps=1, epochs=1, quiet=True, observer=Accuracies())
        5 classes: True
        10 classes: True
    """

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
    """Passes all events on to several observers."""

    def __init__(self, *observers: RunObserver) -> None:
        self.observers = observers

    def loading(self, done: int, total: int) -> None:
        """Pass on how much was read."""
        for each in self.observers:
            each.loading(done, total)

    def started(self, folder: Path, tasks: Sequence[Task], done: int) -> None:
        """Pass on the start."""
        for each in self.observers:
            each.started(folder, tasks, done)

    def resumed(self, records: Sequence[StepRecord]) -> None:
        """Pass on what was learned before."""
        for each in self.observers:
            each.resumed(records)

    def training(self, number: int, classes: Sequence[str]) -> None:
        """Pass on the start of a task."""
        for each in self.observers:
            each.training(number, classes)

    def shared_base(self, waiting: bool) -> None:
        """Pass on where the base comes from."""
        for each in self.observers:
            each.shared_base(waiting)

    def report(self, report: TrainingProgress) -> None:
        """Pass on training progress."""
        for each in self.observers:
            each.report(report)

    def evaluated(self, record: StepRecord) -> None:
        """Pass on the record of a task."""
        for each in self.observers:
            each.evaluated(record)

    def resumed_within(self, task: int, epoch: int) -> None:
        """Pass on that a task is resumed."""
        for each in self.observers:
            each.resumed_within(task, epoch)

    def stop(self) -> bool:
        """Whether one of them wants the run to stop."""
        return any([each.stop() for each in self.observers])
