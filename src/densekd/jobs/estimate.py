"""How much of a job is done, and how long the rest will take."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from densekd.data.memory import Quota
from densekd.data.scenario import Task
from densekd.methods.method import Method
from densekd.training.callbacks import TrainingProgress


class PhaseWork(NamedTuple):
    """A phase of a task, and how many images it trains on, counting each epoch."""

    task: int
    phase: str
    images: int


def workload(method: Method, tasks: Sequence[Task], quota: Quota) -> list[PhaseWork]:
    """List the phases of a run with the images that each trains on."""
    found, images, classes = [], 0, 0
    for task in tasks:
        old, classes = classes, classes + len(task.classes)
        new, kept = len(task.train), quota.of(classes)
        if method.keeps == "everything":
            replayed = images
        elif method.streams == "split" and task.number:
            replayed = new  # a batch of exemplars for each batch of new images
        else:
            replayed = kept * old
        amount = {
            "streams": new + replayed,
            "balanced": kept * classes,
            "held-out": round(method.held_out * kept * classes),
        }
        for phase in method.increment if task.number else method.base:
            epochs = phase.schedule.epochs
            found.append(PhaseWork(task.number, phase.name, max(1, epochs * amount[phase.data])))
        images += new
    return found


class TimeLeft(NamedTuple):
    """Seconds until the current phase and the whole job end."""

    phase: float
    run: float


class Estimate:
    """Estimates progress and time left from the speed since the first report of a phase.

    A resumed job has done part of a phase before, so time is counted from the first report.
    """

    def __init__(
        self, plan: Sequence[PhaseWork], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.plan, self.clock = plan, clock
        self._images = sum(work.images for work in plan)
        self._phase: tuple[int, str] | None = None
        self._since = (0.0, 0.0)

    def left(self, report: TrainingProgress) -> TimeLeft | None:
        """Estimate the time left; None at the first report of a phase."""
        now, done = self.clock(), _phase_share(report)
        if self._phase != (report.task, report.phase):
            self._phase, self._since = (report.task, report.phase), (now, done)
        began, done_then = self._since
        if done <= done_then or now <= began:
            return None
        seconds = (now - began) / (done - done_then)  # of the whole phase
        place = self._place(report)
        after = sum(work.images for work in self.plan[place + 1 :])
        phase = (1 - done) * seconds
        return TimeLeft(phase, phase + after * seconds / self.plan[place].images)

    def share(self, report: TrainingProgress) -> float:
        """The share of the job that is done, from 0 to 1."""
        place = self._place(report)
        done = sum(work.images for work in self.plan[:place])
        return (done + _phase_share(report) * self.plan[place].images) / self._images

    def share_before(self, task: int) -> float:
        """The share of the job that comes before a task; 1 after the last."""
        return sum(work.images for work in self.plan if work.task < task) / self._images

    def _place(self, report: TrainingProgress) -> int:
        return [work[:2] for work in self.plan].index((report.task, report.phase))


class CountEstimate:
    """Estimates the time left from the speed since the first of many equal pieces of work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._first: tuple[int, float] | None = None

    def left(self, done: int, total: int) -> float | None:
        """Estimate the seconds left; None in the first second. A smaller count starts anew."""
        now = self.clock()
        if self._first is None or done < self._first[0]:
            self._first = done, now
        first, began = self._first
        if now - began < 1 or done == first:
            return None
        return (total - done) * (now - began) / (done - first)


def _phase_share(report: TrainingProgress) -> float:
    return (report.epoch + report.batch / report.batches) / report.epochs
