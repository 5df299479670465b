"""How learning tells how far it is, and is asked to stop."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingProgress:
    """How far training is.

    Args:
        task: the number of the task.
        phase: the name of the phase.
        epoch: the epoch, counted from 0.
        epochs: how many the phase has.
        batch: how many batches of the epoch are done.
        batches: how many it has.
        lr: the learning rate.
        images_per_second: over all streams and ranks, since the last report.
        losses: the mean of each term over the epoch so far, by slot.
    """

    task: int
    phase: str
    epoch: int
    epochs: int
    batch: int
    batches: int
    lr: float
    images_per_second: float
    losses: Mapping[str, float]

    @property
    def ends_epoch(self) -> bool:
        """Whether the epoch is over."""
        return self.batch == self.batches


class Callback:
    """Whom learning reports to; this one takes no notice."""

    def report(self, report: TrainingProgress) -> None:
        """Called about once a second, and at the end of each epoch."""

    def stop(self) -> bool:
        """Asked after each batch, and each image that is read: whether to save and leave."""
        return False


class Stopped(Exception):
    """Training was asked to stop, and saved where it was."""


def stoppable(tell: Callable[[int, int], None], callback: Callback) -> Callable[[int, int], None]:
    """For reading images, which may take minutes: tells how far it is, and stops when asked to."""

    def told(done: int, total: int) -> None:
        tell(done, total)
        if callback.stop():
            raise Stopped

    return told


@contextmanager
def warnings_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Pass on what the package warns of, as it is logged."""
    handler, logger = _Handler(tell), logging.getLogger("densekd")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Handler(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self.tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(record.getMessage())
