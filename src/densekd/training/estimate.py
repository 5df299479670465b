"""How long a run will take, from how fast it is."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from densekd.data.memory import Quota
from densekd.data.scenario import Task
from densekd.methods.method import Method
from densekd.training.callbacks import TrainingProgress


class PhaseWork(NamedTuple):
    """A phase of a task, and how many images it goes through, repetitions counted."""

    task: int
    phase: str
    images: int


def workload(method: Method, tasks: Sequence[Task], quota: Quota) -> list[PhaseWork]:
    """What a run goes through.

    Args:
        method: says which phases.
        tasks: one after another.
        quota: how many exemplars a class may keep.
    """
    found, images, classes = [], 0, 0
    for task in tasks:
        old, classes = classes, classes + len(task.classes)
        new, kept = len(task.train), quota.of(classes)
        if method.keeps == "everything":
            beside = images
        elif method.streams == "split" and task.number:
            beside = new  # a batch of exemplars for each batch of new images
        else:
            beside = kept * old
        amount = {
            "streams": new + beside,
            "balanced": kept * classes,
            "held-out": round(method.held_out * kept * classes),
        }
        for phase in method.increment if task.number else method.base:
            epochs = phase.schedule.epochs
            found.append(PhaseWork(task.number, phase.name, max(1, epochs * amount[phase.data])))
        images += new
    return found


class Left(NamedTuple):
    """Seconds until the end."""

    phase: float
    run: float


class Estimate:
    """Predicts the time that is left from the speed since the phase's first report.

    Args:
        plan: the workload of the run.
        clock: the time in seconds.
    """

    def __init__(
        self, plan: Sequence[PhaseWork], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.plan = plan
        self.clock = clock
        self._phase: tuple[int, str] | None = None
        self._since = (0.0, 0.0)

    def left(self, report: TrainingProgress) -> Left | None:
        """What is left, or None if that can't be told yet."""
        now = self.clock()
        done = (report.epoch + report.batch / report.batches) / report.epochs
        if self._phase != (report.task, report.phase):
            self._phase, self._since = (report.task, report.phase), (now, done)
        began, done_then = self._since
        if done <= done_then or now <= began:
            return None
        seconds = (now - began) / (done - done_then)  # of the whole phase
        place = [phase_work[:2] for phase_work in self.plan].index((report.task, report.phase))
        after = sum(phase_work.images for phase_work in self.plan[place + 1 :])
        phase = (1 - done) * seconds
        return Left(phase, phase + after * seconds / self.plan[place].images)
