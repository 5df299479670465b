"""How training reports progress, passes on warnings, and is asked to stop."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingProgress:
    """How far training is. Tasks and epochs are counted from 0."""

    task: int
    phase: str
    epoch: int
    epochs: int
    batch: int  # batches of the epoch that are done
    batches: int
    lr: float
    images_per_second: float  # over all streams and ranks, since the last report
    losses: Mapping[str, float]  # mean of each term over the epoch so far, by slot

    @property
    def ends_epoch(self) -> bool:
        """Whether the epoch is over."""
        return self.batch == self.batches


class Callback:
    """Follows training; override what you need."""

    def report(self, report: TrainingProgress) -> None:
        """Receive progress, about once a second and at the end of each epoch."""

    def resumed_within(self, task: int, epoch: int) -> None:
        """Training of a task resumes from a checkpoint, after ``epoch`` epochs of its phase."""

    def stop(self) -> bool:
        """Whether to save and stop; called after each batch and each image that is read."""
        return False


class Stopped(Exception):
    """A callback stopped the training; progress is saved, and the same call resumes it.

    Example:
        >>> import densekd
        >>> class Impatient(densekd.RunObserver):
        ...     def stop(self):
        ...         return True
        >>> try:
        ...     densekd.run(steps=1, epochs=1, quiet=True, observer=Impatient())
        ... except densekd.Stopped:
        ...     print(len(densekd.run(steps=1, epochs=1, quiet=True).steps))
        2
    """


def stoppable(
    progress: Callable[[int, int], None], callback: Callback
) -> Callable[[int, int], None]:
    """Make a progress function that also raises `Stopped` when ``callback`` asks to stop.

    For reading images, which may take minutes.
    """

    def progress_or_stop(done: int, total: int) -> None:
        progress(done, total)
        if callback.stop():
            raise Stopped

    return progress_or_stop


@contextmanager
def forward_warnings(send: Callable[[str], None]) -> Iterator[None]:
    """Send the package's logged warnings to a function, while in the context."""
    handler, logger = _Handler(send), logging.getLogger("densekd")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Handler(logging.Handler):
    def __init__(self, send: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self.send = send

    def emit(self, record: logging.LogRecord) -> None:
        self.send(record.getMessage())
