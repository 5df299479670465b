"""The events that a run reports to its observers."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from densekd.data.scenario import Task
from densekd.runs.record import StepRecord
from densekd.training.callbacks import Callback


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
        """The run goes on after these tasks, which earlier calls learned."""

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
        for event in dir(RunObserver):
            if not event.startswith("_") and event != "stop":
                setattr(self, event, partial(self._pass_on, event))

    def stop(self) -> bool:
        """Whether one of them wants the run to stop."""
        return any([each.stop() for each in self.observers])

    def _pass_on(self, event: str, *facts: Any, **named: Any) -> None:
        for each in self.observers:
            getattr(each, event)(*facts, **named)
